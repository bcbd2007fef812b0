"""MaxPool: the largest value under each window.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32; 1-D: H = R = P = 1
Source    ONNX operator MaxPool
Not here  3-D windows, the Indices output: refused by name
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minicnn.pooling import Pooling
from minicnn.registry import Case, operator
from minicnn.window import taps


@operator("MaxPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class MaxPool(Pooling):
    stem: ClassVar[str] = "maxpool"
    storage_order: int = 0  # of Indices, which isn't here

    def reference(self, x: np.ndarray) -> np.ndarray:
        windows = self.pooled(x.shape)
        y = np.full((*x.shape[:2], *(one.out for one in windows)), -np.inf)
        for tap, is_inside in taps(x.astype(np.float64), windows):
            y = np.where(is_inside, np.maximum(y, tap), y)
        return y

    def bound(self, x: np.ndarray) -> float:
        return 0.0


def _case(x: tuple[int, ...], pool: MaxPool) -> Case:
    return Case(operator=pool, shapes=(x,))


CASES = {
    "h differs from w": _case((2, 3, 9, 14), MaxPool(kernel_shape=(3, 2))),
    "one pixel": _case((1, 1, 1, 1), MaxPool(kernel_shape=(1, 1))),
    "strides and uneven pads": _case(
        (1, 19, 9, 8), MaxPool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1))
    ),
    "ceil_mode": _case((1, 5, 8, 7), MaxPool(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)),
    "ceil_mode, last window all padding": _case(
        (1, 5, 6, 7), MaxPool(kernel_shape=(2, 2), strides=(3, 3), pads=(1, 1, 1, 1), ceil_mode=1)
    ),
    "dilated": _case((2, 33, 9, 10), MaxPool(kernel_shape=(3, 2), dilations=(2, 3), pads=(2, 1, 1, 1))),
    "SAME_UPPER": _case((1, 16, 7, 8), MaxPool(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER")),
    "SAME_LOWER": _case((1, 16, 7, 8), MaxPool(kernel_shape=(2, 3), strides=(2, 2), auto_pad="SAME_LOWER")),
    "VALID": _case((1, 16, 7, 8), MaxPool(kernel_shape=(2, 3), strides=(2, 2), auto_pad="VALID")),
    "wider than a block": _case((1, 2, 2, 700), MaxPool(kernel_shape=(1, 2))),
    "more channels than a block": _case((1, 1100, 3, 3), MaxPool(kernel_shape=(2, 2))),
    "the whole image": _case((3, 20, 5, 6), MaxPool(kernel_shape=(5, 6))),
    "1-D": _case((2, 18, 23), MaxPool(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
}
