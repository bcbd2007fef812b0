"""AveragePool: the mean of each window.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32 or float16; 1-D: H = R = P = 1; 3-D: x (N, C, D, H, W)
Source    ONNX operator AveragePool
Not here  more than 3-D: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minicnn import elements
from minicnn.elements import UNIT_ROUNDOFF
from minicnn.geometry import Window
from minicnn.pooling import Pooling
from minicnn.registry import Case, operator
from minicnn.window import taps, two_axes


@operator("AveragePool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class AveragePool(Pooling):
    stem: ClassVar[str] = "averagepool"
    count_include_pad: int = 0

    def kernel_arguments(self, windows: tuple[Window, ...]) -> dict[str, Any]:
        *depth, vertical, horizontal = two_axes(windows) if len(windows) < 3 else windows
        ends = {"pad_bottom": vertical.pad_after, "pad_right": horizontal.pad_after}
        if depth:
            ends["pad_back"] = depth[0].pad_after
        return super().kernel_arguments(windows) | ends | {"count_pads": self.count_include_pad}

    def reference(self, x: np.ndarray) -> np.ndarray:
        windows = self.pooled(x.shape)
        total = np.zeros((*x.shape[:2], *(one.out for one in windows)))
        number = np.zeros(total.shape[2:])
        for tap, is_inside in taps(x.astype(np.float64), windows):
            total += np.where(is_inside, tap, 0.0)
            number += is_inside
        if self.count_include_pad:
            padded = tuple(_padded(one) for one in windows)
            ones = np.ones((1, 1, *(one.extent for one in padded)))
            number = np.sum([is_inside * tap[0, 0] for tap, is_inside in taps(ones, padded)], axis=0)
        return total / number

    def bound(self, x: np.ndarray) -> np.ndarray:
        own = 4 * math.sqrt(math.prod(self.kernel_shape)) * UNIT_ROUNDOFF * self.reference(np.abs(x))
        return own + elements.storage_bound(self.reference(x), x.dtype)


def _padded(one: Window) -> Window:
    """The same windows over an input that has its padding on."""
    extent = one.pad_before + one.extent + one.pad_after
    return replace(one, extent=extent, pad_before=0, pad_after=0)


def _case(x: tuple[int, ...], pool: AveragePool) -> Case:
    return Case(operator=pool, shapes=(x,))


CASES = {
    "h differs from w": _case((2, 3, 9, 14), AveragePool(kernel_shape=(3, 2))),
    "one pixel": _case((1, 1, 1, 1), AveragePool(kernel_shape=(1, 1))),
    "uneven pads not counted": _case(
        (1, 19, 9, 8), AveragePool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1))
    ),
    "uneven pads counted": _case(
        (1, 19, 9, 8),
        AveragePool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1), count_include_pad=1),
    ),
    "ceil_mode": _case((1, 5, 8, 7), AveragePool(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)),
    "ceil_mode, pads counted but not what hangs over": _case(
        (1, 5, 8, 7),
        AveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 0), ceil_mode=1, count_include_pad=1),
    ),
    "dilated": _case((2, 33, 9, 10), AveragePool(kernel_shape=(3, 2), dilations=(2, 3), pads=(2, 1, 1, 1))),
    "SAME_UPPER": _case(
        (1, 16, 7, 8), AveragePool(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER")
    ),
    "SAME_LOWER, counted": _case(
        (1, 16, 7, 8),
        AveragePool(kernel_shape=(2, 3), strides=(2, 2), auto_pad="SAME_LOWER", count_include_pad=1),
    ),
    "wider than a block": _case((1, 2, 2, 700), AveragePool(kernel_shape=(1, 2))),
    "the whole image": _case((3, 20, 5, 6), AveragePool(kernel_shape=(5, 6))),
    "3-D, uneven pads not counted": _case(
        (2, 3, 5, 7, 6), AveragePool(kernel_shape=(2, 3, 3), strides=(1, 2, 1), pads=(1, 0, 1, 1, 1, 1))
    ),
    "3-D, ceil_mode, pads counted": _case(
        (1, 2, 6, 5, 7),
        AveragePool(
            kernel_shape=(3, 2, 2),
            strides=(2, 2, 2),
            pads=(1, 0, 1, 1, 0, 0),
            ceil_mode=1,
            count_include_pad=1,
        ),
    ),
    "3-D, ceil_mode, columns hang over": _case(
        (1, 2, 5, 5, 8),
        AveragePool(
            kernel_shape=(2, 2, 2),
            strides=(2, 2, 2),
            pads=(0, 0, 1, 1, 1, 0),
            ceil_mode=1,
            count_include_pad=1,
        ),
    ),
    "3-D, all axes different": _case(
        (1, 2, 6, 9, 11),
        AveragePool(kernel_shape=(2, 3, 4), strides=(2, 1, 3), dilations=(4, 3, 2), pads=(1, 2, 0, 0, 1, 3)),
    ),
    "3-D, all axes different, pads counted": _case(
        (1, 2, 6, 9, 11),
        AveragePool(
            kernel_shape=(3, 2, 3),
            strides=(1, 3, 2),
            dilations=(1, 2, 3),
            pads=(0, 1, 2, 1, 0, 1),
            count_include_pad=1,
        ),
    ),
    "float16, uneven pads": Case(
        operator=AveragePool(kernel_shape=(3, 2), strides=(2, 3), pads=(0, 1, 2, 1)),
        shapes=((2, 19, 9, 8),),
        dtype="float16",
    ),
    "1-D": _case((2, 18, 23), AveragePool(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
}
