"""`depthwise_strips`: the CPU's depthwise convolution, a strip of a row's pixels a thread.

Source    cuda/depthwise_strips.cu names it
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn import epilogue
from minicnn.geometry import ceil_div
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Depthwise, extents_of, weights_of
from minicnn.registry import Problem, Target, Variant
from minicnn.step import Kernel, Step
from minicnn.tiling import VECTOR
from minicnn.window import window_arguments

MOST_TAPS = 7  # a row of the filter in registers
MOST_STRIDE = 2
THREADS_A_BLOCK = 32
PIXELS = {"x86-64-v3": (4,), "x86-64-v2": (2,), "armv8-a": (4,)}  # of a strip, where registers are few
WIDE_PIXELS = (7, 14)


@dataclass(frozen=True, kw_only=True)
class DepthwiseStrips(Depthwise):
    """`pixels` of a strip; 0: what divides the row."""

    name = "depthwise_strips"
    devices = ("host",)
    pixels: int = 0

    @property
    def label(self) -> str:
        return f"{self.name}, {self.pixels} pixels" if self.pixels else self.name

    def suits(self, problem: Problem) -> str:
        e = extents_of(problem, weights_of(problem).shape[2:])
        if e.horizontal.dilation != 1:
            return "its columns are dilated"
        if e.S > MOST_TAPS:
            return f"a row of the filter has {e.S} taps, more than {MOST_TAPS}"
        if e.horizontal.stride > MOST_STRIDE:
            return f"its stride is {e.horizontal.stride}, more than {MOST_STRIDE}"
        return super().suits(problem)

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        return tuple(DepthwiseStrips(pixels=pixels) for pixels in _lengths(problem.target))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, weights_of(problem), problem.y, problem.residual
        e = extents_of(problem, w.shape[:2])
        channels = min(o.channels_padded for o in (x, y, residual) if o is not None)
        lengths = _lengths(problem.target)
        pixels = self.pixels or next((n for n in reversed(lengths) if e.Q % n == 0), lengths[0])
        vectors, strips = ceil_div(channels, VECTOR), ceil_div(e.Q, pixels)
        width = ceil_div(vectors, ceil_div(vectors, THREADS_A_BLOCK))
        height = max(1, min(strips, THREADS_A_BLOCK // width))
        arguments = window_arguments(e.windows)
        taps, stride = arguments.pop("S"), arguments.pop("stride_w")
        del arguments["dilation_w"]
        return launch(
            Kernel(
                file="depthwise_strips.cu",
                entry="depthwise_strips",
                defines=(("PIXELS", pixels), ("TAPS", taps), ("STRIDE", stride)),
            ),
            grid=(ceil_div(vectors, width), ceil_div(strips, height), e.N * e.P),
            block=(width, height, 1),
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            C=channels,
            x_stride=x.pixel_stride,
            w_stride=w.shape[2],
            y_stride=y.pixel_stride,
            residual_stride=residual.pixel_stride if residual else 0,
            **arguments,
            **epilogue.arguments(problem.epilogue),
        )


def _lengths(target: Target) -> tuple[int, ...]:
    return PIXELS.get(target.architecture, WIDE_PIXELS)
