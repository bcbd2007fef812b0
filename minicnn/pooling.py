"""What MaxPool and AveragePool share: their shapes, and the two ways over the image.

An operator that derives from Pooling names its .cu file by `stem`; the entries are `stem` (NCHW) and
`stem`_nhwc, with the parameters that Direct, Nhwc and `kernel_arguments` give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from minicnn import elements, tiling
from minicnn.errors import ShapeError
from minicnn.geometry import Shape, Window, round_up, window
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Cost, Orders, Problem, Variant
from minicnn.step import Kernel, Operand, Step
from minicnn.window import Windowed, two_axes, volume_arguments, window_arguments


@dataclass(frozen=True, kw_only=True)
class Pooling(Windowed):
    """Shapes    x (N, C, H, W) -> y (N, C, P, Q); 1-D: H = R = P = 1; 3-D: x (N, C, D, H, W)"""

    stem: ClassVar[str]
    ceil_mode: int = 0

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (more than 3-D)"""
        if len(x.extents) < 3:
            raise ShapeError("too few axes", expected="x (N, C, H, W)", found=x.extents)
        if self.ceil_mode not in (0, 1):  # others disagree about what that would mean
            raise ShapeError("ceil_mode is a switch", found=self.ceil_mode, accepted="0 or 1")
        out = (one.out for one in self.pooled(x.extents))
        return (TensorType(dtype=x.dtype, shape=(*x.extents[:2], *out)),)

    def pooled(self, shape: Shape) -> tuple[Window, ...]:
        """The windows over an input of this shape."""
        return self.windows(shape[2:], self.kernel_shape, ceil_mode=bool(self.ceil_mode))

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc(), Volume(), Planes())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape) * math.prod(self.kernel_shape))

    def kernel_arguments(self, windows: tuple[Window, ...]) -> dict[str, Any]:
        return window_arguments(two_axes(windows)) if len(windows) < 3 else volume_arguments(windows)


class _Flat(Variant):
    """Over images, and over rows as images of height 1."""

    dtypes = elements.FLOATS

    def applies(self, problem: Problem) -> str:
        if len(problem.outputs) > 1:
            return "gives no indices"
        return "" if len(problem.x.shape) < 5 else "x is a volume"


class Direct(_Flat):
    """The textbook's loops over NCHW planes, an output a thread."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, pool = problem.x, problem.operator
        windows = two_axes(pool.pooled(x.shape))
        P, Q = (one.out for one in windows)
        return launch(
            Kernel(file=f"{pool.stem}.cu", entry=pool.stem, defines=elements.defines(x.dtype)),
            **tiling.planes(columns=Q, rows=P, planes=math.prod(x.shape[:2])),
            x=x,
            y=problem.y,
            **pool.kernel_arguments(windows),
        )


class Volume(Variant):
    """The textbook's loops over N,C,D,H,W, an output a thread."""

    name = "volume"

    def applies(self, problem: Problem) -> str:
        if len(problem.outputs) > 1:
            return "gives no indices"
        return "" if len(problem.x.shape) == 5 else "x is no volume"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        pool, (N, C, O, P, Q) = problem.operator, problem.y.shape  # noqa: E741
        return launch(
            Kernel(file="volume.cu", entry=f"{pool.stem}_volume"),
            **tiling.planes(columns=Q, rows=P, planes=N * C * O),
            x=problem.x,
            y=problem.y,
            **pool.kernel_arguments(pool.pooled(problem.x.shape)),
        )


class Planes(Volume):
    """Every plane of a volume as an image, then its depth against its pixels as another: the largest, the
    mean and the norm of a window can be had one axis after the other. A vector of channels a thread."""

    name = "planes"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def workspace_bytes(self, problem: Problem) -> int:
        N, C, D = problem.x.shape[:3]
        return 4 * N * D * math.prod(problem.y.shape[3:]) * round_up(C, tiling.VECTOR)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, workspace = problem.x, problem.y, problem.workspace
        assert workspace is not None
        depth, vertical, horizontal = problem.operator.pooled(x.shape)
        N, C, D = x.shape[:3]
        between = round_up(C, tiling.VECTOR)
        pixels = window(
            extent=vertical.out * horizontal.out,
            kernel=1,
            stride=1,
            dilation=1,
            pads=(0, 0),
            auto_pad="NOTSET",
        )
        across = _nhwc_launch(
            problem, (vertical, horizontal), x, workspace, images=N * D, strides=(x.pixel_stride, between)
        )
        along = _nhwc_launch(
            problem, (depth, pixels), workspace, y, images=N, strides=(between, y.pixel_stride)
        )
        return across + along


def _nhwc_launch(
    problem: Problem,
    windows: tuple[Window, Window],
    x: Operand,
    y: Operand,
    *,
    images: int,
    strides: tuple[int, int],
) -> tuple[Step, ...]:
    """strides: elements from pixel to pixel of x and y; channels are those of the problem's x and y."""
    pool, (P, Q) = problem.operator, (one.out for one in windows)
    defines = elements.defines(problem.x.dtype)
    channels = min(problem.x.channels_padded, problem.y.channels_padded)
    return launch(
        Kernel(file=f"{pool.stem}.cu", entry=f"{pool.stem}_nhwc", defines=defines),
        **tiling.vectors(channels=channels, rows=Q, planes=images * P),
        x=x,
        y=y,
        C=channels,
        x_stride=strides[0],
        y_stride=strides[1],
        **pool.kernel_arguments(windows),
    )


class Nhwc(_Flat):
    """A vector of channels a thread."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        windows = two_axes(problem.operator.pooled(x.shape))
        return _nhwc_launch(
            problem, windows, x, y, images=x.shape[0], strides=(x.pixel_stride, y.pixel_stride)
        )
