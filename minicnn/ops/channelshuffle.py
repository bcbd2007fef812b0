"""ChannelShuffle: channels of several groups, one of each in turn. ONNX: Reshape, Transpose, Reshape.

Shapes    x (N, C, H, W) -> y of the same shape, float32: channel b * group + a of y is a * C/group + b of x
Source    Zhang et al., "ShuffleNet", 2018; `patterns.join` makes it
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import ceil_div
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Step
from minicnn.strided import move_steps

PIXELS_A_BLOCK = 32


class Copy(Variant):
    """One strided copy, whatever the layouts."""

    name = "copy"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, group = problem.x, problem.y, problem.operator.group
        N, C, *spatial = x.shape
        x_batch, x_channel, *x_rest = x.strides
        y_batch, y_channel, *y_rest = y.strides
        extents = (N, group, C // group, *spatial)
        x_strides = (x_batch, C // group * x_channel, x_channel, *x_rest)
        y_strides = (y_batch, y_channel, group * y_channel, *y_rest)
        return move_steps(extents, x, x_strides, y, y_strides)


class Nhwc(Variant):
    """A pixel a thread."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        pixels = math.prod(x.shape) // x.shape[1]
        return launch(
            Kernel(
                file="channelshuffle.cu",
                entry="channelshuffle",
                defines=(("GROUPS", problem.operator.group),),
            ),
            grid=(ceil_div(pixels, PIXELS_A_BLOCK), 1, 1),
            block=(PIXELS_A_BLOCK, 1, 1),
            x=x,
            y=y,
            pixels=pixels,
            C=x.shape[1],
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
        )


@operator("ChannelShuffle", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class ChannelShuffle:
    group: int

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(x.extents) < 2 or self.group < 1 or x.extents[1] % self.group:
            raise ShapeError(
                "channels don't fit the groups", expected=f"a multiple of {self.group}", found=x.extents
            )
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Copy(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        N, C, *spatial = x.shape
        return x.reshape(N, self.group, C // self.group, *spatial).swapaxes(1, 2).reshape(x.shape)

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "h differs from w": Case(operator=ChannelShuffle(group=4), shapes=((2, 136, 3, 5),)),
    "three groups, odd runs": Case(operator=ChannelShuffle(group=3), shapes=((1, 15, 9, 7),)),
    "a group a channel": Case(operator=ChannelShuffle(group=5), shapes=((2, 5, 2, 2),)),
    "no spatial axes": Case(operator=ChannelShuffle(group=2), shapes=((3, 34),)),
}
