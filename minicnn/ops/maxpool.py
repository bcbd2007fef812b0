"""MaxPool: the largest value under each window.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32; 1-D: H = R = P = 1
Source    ONNX operator MaxPool
Not here  3-D windows, the Indices output: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import ceil_div, round_up
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Step
from minicnn.tiling import VECTOR, tile
from minicnn.window import Windowed, taps, two_axes, window_arguments


@operator("MaxPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class MaxPool(Windowed):
    ceil_mode: int = 0
    storage_order: int = 0  # of Indices, which isn't here

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (3-D)"""
        if len(x.extents) < 3:
            raise ShapeError("too few axes", expected="x (N, C, H, W)", found=x.extents)
        windows = self.windows(x.extents[2:], self.kernel_shape, ceil_mode=bool(self.ceil_mode))
        return (TensorType(dtype=x.dtype, shape=(*x.extents[:2], *(one.out for one in windows))),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape) * math.prod(self.kernel_shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        windows = self.windows(x.shape[2:], self.kernel_shape, ceil_mode=bool(self.ceil_mode))
        y = np.full((*x.shape[:2], *(one.out for one in windows)), -np.inf)
        for tap, is_inside in taps(x.astype(np.float64), windows):
            y = np.where(is_inside, np.maximum(y, tap), y)
        return y

    def bound(self, x: np.ndarray) -> float:
        return 0.0


class _Pooling(Variant):
    def applies(self, problem: Problem) -> str:
        return "" if problem.x.dtype == "float32" else f"the input is {problem.x.dtype}, not float32"


class Direct(_Pooling):
    """The textbook's loops over NCHW planes."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, pool = problem.x, problem.y, problem.operator
        windows = two_axes(pool.windows(x.shape[2:], pool.kernel_shape, ceil_mode=bool(pool.ceil_mode)))
        P, Q = (one.out for one in windows)
        block = min(256, round_up(Q, 32))
        return launch(
            Kernel(file="maxpool.cu", entry="maxpool"),
            grid=(ceil_div(Q, block), P, math.prod(x.shape[:2])),
            block=(block, 1, 1),
            x=x,
            y=y,
            **window_arguments(windows),
        )


class Nhwc(_Pooling):
    """A vector of channels a thread."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, pool = problem.x, problem.y, problem.operator
        windows = two_axes(pool.windows(x.shape[2:], pool.kernel_shape, ceil_mode=bool(pool.ceil_mode)))
        P, Q = (one.out for one in windows)
        channels = min(x.channels_padded, y.channels_padded)
        grid, block = tile(columns=ceil_div(channels, VECTOR), rows=Q, threads=64)
        return launch(
            Kernel(file="maxpool.cu", entry="maxpool_nhwc"),
            grid=(grid[0], grid[1], x.shape[0] * P),
            block=block,
            x=x,
            y=y,
            C=channels,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            **window_arguments(windows),
        )


def _case(x: tuple[int, ...], pool: MaxPool) -> Case:
    return Case(operator=pool, shapes=(x,))


CASES = {
    "h differs from w": _case((2, 3, 9, 14), MaxPool(kernel_shape=(3, 2))),
    "one pixel": _case((1, 1, 1, 1), MaxPool(kernel_shape=(1, 1))),
    "strides and uneven pads": _case((1, 19, 9, 8), MaxPool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1))),
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
