"""AveragePool: the mean of each window.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32; 1-D: H = R = P = 1
Source    ONNX operator AveragePool
Not here  3-D windows: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Window, ceil_div, round_up
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Step
from minicnn.tiling import VECTOR, tile
from minicnn.window import Windowed, taps, two_axes, window_arguments


@operator("AveragePool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class AveragePool(Windowed):
    ceil_mode: int = 0
    count_include_pad: int = 0

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
        total = np.zeros((*x.shape[:2], *(one.out for one in windows)))
        number = np.zeros(total.shape[2:])
        for tap, is_inside in taps(x.astype(np.float64), windows):
            total += np.where(is_inside, tap, 0.0)
            number += is_inside
        if self.count_include_pad:
            padding = [(one.pad_before, one.pad_after) for one in windows]
            ones = np.pad(np.ones((1, 1, *x.shape[2:])), [(0, 0), (0, 0), *padding], constant_values=1.0)
            padded = [_without_pads(one) for one in windows]
            number = sum(np.where(is_inside, tap, 0.0) for tap, is_inside in taps(ones, tuple(padded)))
        return total / number

    def bound(self, x: np.ndarray) -> np.ndarray:
        return 4 * math.sqrt(math.prod(self.kernel_shape)) * 2.0**-24 * self.reference(np.abs(x))


def _without_pads(one: Window) -> Window:
    """The same windows over an input that has its padding on."""
    return Window(
        extent=one.pad_before + one.extent + one.pad_after,
        kernel=one.kernel,
        stride=one.stride,
        dilation=one.dilation,
        pad_before=0,
        pad_after=0,
        out=one.out,
    )


class _Pooling(Variant):
    def applies(self, problem: Problem) -> str:
        return "" if problem.x.dtype == "float32" else f"the input is {problem.x.dtype}, not float32"


def _windows(problem: Problem) -> tuple[Window, Window]:
    pool = problem.operator
    return two_axes(pool.windows(problem.x.shape[2:], pool.kernel_shape, ceil_mode=bool(pool.ceil_mode)))


def _arguments(problem: Problem, windows: tuple[Window, Window]) -> dict[str, int]:
    vertical, horizontal = windows
    return window_arguments(windows) | {
        "pad_bottom": vertical.pad_after,
        "pad_right": horizontal.pad_after,
        "count_pads": problem.operator.count_include_pad,
    }


class Direct(_Pooling):
    """The textbook's loops over NCHW planes."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        windows = _windows(problem)
        P, Q = (one.out for one in windows)
        block = min(256, round_up(Q, 32))
        return launch(
            Kernel(file="averagepool.cu", entry="averagepool"),
            grid=(ceil_div(Q, block), P, math.prod(problem.x.shape[:2])),
            block=(block, 1, 1),
            x=problem.x,
            y=problem.y,
            **_arguments(problem, windows),
        )


class Nhwc(_Pooling):
    """A vector of channels a thread."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        windows = _windows(problem)
        P, Q = (one.out for one in windows)
        channels = min(x.channels_padded, y.channels_padded)
        grid, block = tile(columns=ceil_div(channels, VECTOR), rows=Q, threads=64)
        return launch(
            Kernel(file="averagepool.cu", entry="averagepool_nhwc"),
            grid=(grid[0], grid[1], x.shape[0] * P),
            block=block,
            x=x,
            y=y,
            C=channels,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            **_arguments(problem, windows),
        )


def _case(x: tuple[int, ...], pool: AveragePool) -> Case:
    return Case(operator=pool, shapes=(x,))


CASES = {
    "h differs from w": _case((2, 3, 9, 14), AveragePool(kernel_shape=(3, 2))),
    "one pixel": _case((1, 1, 1, 1), AveragePool(kernel_shape=(1, 1))),
    "uneven pads not counted": _case((1, 19, 9, 8), AveragePool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1))),
    "uneven pads counted": _case(
        (1, 19, 9, 8), AveragePool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1), count_include_pad=1)
    ),
    "ceil_mode": _case((1, 5, 8, 7), AveragePool(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)),
    "ceil_mode, pads counted but not what hangs over": _case(
        (1, 5, 8, 7),
        AveragePool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 0), ceil_mode=1, count_include_pad=1),
    ),
    "dilated": _case((2, 33, 9, 10), AveragePool(kernel_shape=(3, 2), dilations=(2, 3), pads=(2, 1, 1, 1))),
    "SAME_UPPER": _case((1, 16, 7, 8), AveragePool(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER")),
    "SAME_LOWER, counted": _case(
        (1, 16, 7, 8), AveragePool(kernel_shape=(2, 3), strides=(2, 2), auto_pad="SAME_LOWER", count_include_pad=1)
    ),
    "wider than a block": _case((1, 2, 2, 700), AveragePool(kernel_shape=(1, 2))),
    "the whole image": _case((3, 20, 5, 6), AveragePool(kernel_shape=(5, 6))),
    "1-D": _case((2, 18, 23), AveragePool(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
}
