"""`depthwise_strips`, `depthwise_quads`: depthwise convolutions for the CPU and the GPU.

A thread makes a strip of a row's pixels: of whole vectors of channels on a CPU, of four on a GPU, so that a
warp's loads lie side by side.

Source    cuda/depthwise_strips.cu, cuda/depthwise_quads.cu name it
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn import elements, epilogue
from minicnn.geometry import ceil_div
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Depthwise, Extents, extents_of, weights_of
from minicnn.registry import Problem, Target, Variant
from minicnn.step import Kernel, Step
from minicnn.tiling import VECTOR
from minicnn.window import window_arguments

MOST_TAPS = 7  # a row of the filter in registers
MOST_STRIDE = 2
THREADS_A_BLOCK = 32
PIXELS = {"x86-64-v3": (4,), "x86-64-v2": (2,), "armv8-a": (4,)}  # of a strip, where registers are few
WIDE_PIXELS = (7, 14)
QUAD = 4  # channels of a GPU's thread: 16 bytes of floats
QUAD_PIXELS = (2, 4)
QUAD_THREADS = 128  # of a block
MANY_THREADS = 1 << 16  # with fewer a GPU isn't full: shorter strips make more


@dataclass(frozen=True, kw_only=True)
class DepthwiseStrips(Depthwise):
    """`pixels` of a strip; 0: what divides the row."""

    name = "depthwise_strips"
    devices = ("host",)
    dtypes = ("float32",)  # type: ignore[assignment]
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
        e = extents_of(problem, weights_of(problem).shape[:2])
        lengths = _lengths(problem.target)
        pixels = self.pixels or next((n for n in reversed(lengths) if e.Q % n == 0), lengths[0])
        return self._launch(problem, e, pixels, VECTOR, THREADS_A_BLOCK)

    def _launch(
        self, problem: Problem, e: Extents, pixels: int, vector: int, threads: int
    ) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, weights_of(problem), problem.y, problem.residual
        channels = min(o.channels_padded for o in (x, y, residual) if o is not None)
        vectors, strips = ceil_div(channels, vector), ceil_div(e.Q, pixels)
        width = ceil_div(vectors, ceil_div(vectors, threads))
        height = max(1, min(strips, threads // width))
        arguments = window_arguments(e.windows)
        taps, stride = arguments.pop("S"), arguments.pop("stride_w")
        del arguments["dilation_w"]
        return launch(
            Kernel(
                file=f"{self.name}.cu",
                entry=self.name,
                defines=(
                    *elements.defines(x.dtype),
                    ("PIXELS", pixels),
                    ("TAPS", taps),
                    ("STRIDE", stride),
                ),
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


@dataclass(frozen=True, kw_only=True)
class DepthwiseQuads(DepthwiseStrips):
    """`pixels` of a strip; 0: as many as leave enough threads. What isn't aligned is left to `depthwise`."""

    name = "depthwise_quads"
    devices = ("cuda", "sim")  # type: ignore[assignment]
    dtypes = elements.FLOATS  # type: ignore[assignment]

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        return tuple(DepthwiseQuads(pixels=pixels) for pixels in QUAD_PIXELS)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        tensors = [o for o in (problem.x, problem.y, problem.residual) if o is not None]
        starts = [o.view().byte_offset // o.itemsize for o in tensors]
        strides = [n for o in tensors for n in (o.pixel_stride, o.channels_padded)]
        if any(place % QUAD for place in (*starts, *strides)):
            return Depthwise.steps(self, problem)
        e = extents_of(problem, weights_of(problem).shape[:2])
        longest = QUAD_PIXELS[-1]
        threads = ceil_div(e.C, QUAD) * ceil_div(e.Q, longest) * e.N * e.P
        pixels = self.pixels or (longest if threads >= MANY_THREADS else QUAD_PIXELS[0])
        return self._launch(problem, e, pixels, QUAD, QUAD_THREADS)


def _lengths(target: Target) -> tuple[int, ...]:
    return PIXELS.get(target.architecture, WIDE_PIXELS)
