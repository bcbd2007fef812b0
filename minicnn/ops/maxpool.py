"""MaxPool: the largest value under each window.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32 or float16; 1-D: H = R = P = 1; 3-D: x (N, C, D, H, W)
          Indices (N, C, P, Q), int64, where the node names them: places in all of x
Source    ONNX operator MaxPool
Not here  more than 3-D, Indices of 3-D windows: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from minicnn import tiling
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.pooling import Pooling
from minicnn.registry import Case, Problem, Variant, operator
from minicnn.step import Kernel, Step
from minicnn.window import taps


class Indexed(Variant):
    """As `direct`, with the places of what is largest."""

    name = "indexed"
    dtypes = ("float32", "int64")

    def applies(self, problem: Problem) -> str:
        if len(problem.outputs) < 2:
            return "no indices are asked for"
        if problem.x.dtype != "float32":
            return f"x is {problem.x.dtype}, not float32"
        return "" if len(problem.x.shape) < 5 else "x is a volume"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, pool = problem.x, problem.operator
        arguments = pool.kernel_arguments(pool.pooled(x.shape))
        return launch(
            Kernel(file="maxpool.cu", entry="maxpool_indices"),
            **tiling.planes(columns=arguments["Q"], rows=arguments["P"], planes=math.prod(x.shape[:2])),
            x=x,
            y=problem.y,
            indices=problem.outputs[1],
            by_columns=pool.storage_order,
            **arguments,
        )


@operator("MaxPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class MaxPool(Pooling):
    stem: ClassVar[str] = "maxpool"
    storage_order: int = 0  # of Indices: 1 counts images by columns
    outputs: int = 1  # how many the node names

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        (y,) = super().infer(x)
        return (y, replace(y, dtype="int64"))[: self.outputs]

    def variants(self) -> tuple[Variant, ...]:
        return (*super().variants(), Indexed())

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """NaN wins over every number, the first of equals over the others."""
        windows = self.pooled(x.shape)
        y = np.full((*x.shape[:2], *(one.out for one in windows)), -np.inf)
        at = np.full(y.shape, -1)
        places = np.arange(x.size).reshape(x.shape)
        if self.storage_order:
            reversed_spatial = (0, 1, *range(x.ndim - 1, 1, -1))
            shape = tuple(x.shape[axis] for axis in reversed_spatial)
            places = places.reshape(shape).transpose(reversed_spatial)
        pairs = zip(taps(x.astype(np.float64), windows), taps(places, windows), strict=True)
        for (tap, is_inside), (place, _) in pairs:
            is_more = is_inside & ((at < 0) | (tap > y) | (np.isnan(tap) & ~np.isnan(y)))
            y, at = np.where(is_more, tap, y), np.where(is_more, place, at)
        return (y, at)[: self.outputs]

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
    "3-D, uneven pads": _case(
        (2, 3, 5, 7, 6), MaxPool(kernel_shape=(2, 3, 3), strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 1))
    ),
    "3-D, pads before rows": _case((1, 2, 3, 5, 4), MaxPool(kernel_shape=(2, 3, 2), pads=(0, 2, 0, 0, 0, 0))),
    "3-D, SAME_UPPER": _case(
        (1, 2, 6, 5, 7), MaxPool(kernel_shape=(3, 2, 2), strides=(2, 1, 2), auto_pad="SAME_UPPER")
    ),
    "3-D, all axes different": _case(
        (1, 2, 6, 9, 11),
        MaxPool(kernel_shape=(2, 3, 4), strides=(2, 1, 3), dilations=(4, 3, 2), pads=(1, 2, 0, 0, 1, 3)),
    ),
    "indices": _case((2, 3, 9, 8), MaxPool(kernel_shape=(3, 2), strides=(2, 2), outputs=2)),
    "indices by columns, pads": _case(
        (2, 3, 9, 8),
        MaxPool(kernel_shape=(3, 3), strides=(2, 1), pads=(1, 0, 1, 1), storage_order=1, outputs=2),
    ),
    "indices, all axes different": _case(
        (2, 3, 9, 10),
        MaxPool(kernel_shape=(3, 4), strides=(1, 2), dilations=(2, 1), pads=(2, 1, 1, 3), outputs=2),
    ),
    "indices, the first of equals": Case(
        operator=MaxPool(kernel_shape=(3, 3), outputs=2), shapes=((1, 2, 5, 7),), ranges={0: (0.5, 0.5)}
    ),
    "indices, 1-D, dilated": _case((2, 5, 23), MaxPool(kernel_shape=(3,), dilations=(2,), outputs=2)),
    "float16, uneven pads": Case(
        operator=MaxPool(kernel_shape=(3, 2), strides=(2, 3), pads=(0, 1, 2, 1)),
        shapes=((2, 19, 9, 8),),
        dtype="float16",
    ),
    "1-D": _case((2, 18, 23), MaxPool(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
}
