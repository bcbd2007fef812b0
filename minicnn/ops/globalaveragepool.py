"""GlobalAveragePool: the mean of every channel over the whole image.

Shapes    x (N, C, any spatial axes) -> y (N, C, 1, ...), float32 or float16
Source    ONNX operator GlobalAveragePool
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements, tiling
from minicnn.elements import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Step


@operator("GlobalAveragePool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class GlobalAveragePool:
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if len(x.extents) < 3:
            raise ShapeError("too few axes", expected="x (N, C, H, W)", found=x.extents)
        return (TensorType(dtype=x.dtype, shape=(*x.extents[:2], *(1 for _ in x.extents[2:]))),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.x.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64).mean(axis=tuple(range(2, x.ndim)), keepdims=True)

    def bound(self, x: np.ndarray) -> np.ndarray:
        own = 4 * math.sqrt(math.prod(x.shape[2:])) * UNIT_ROUNDOFF * self.reference(np.abs(x))
        return own + elements.storage_bound(self.reference(x), x.dtype)


class Direct(Variant):
    """A channel a thread, its NCHW plane from end to end."""

    name = "direct"
    dtypes = elements.FLOATS

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        rows = math.prod(problem.y.shape)
        defines = elements.defines(problem.x.dtype)
        return launch(
            Kernel(file="globalaveragepool.cu", entry="globalaveragepool", defines=defines),
            **tiling.planes(columns=rows),
            x=problem.x,
            y=problem.y,
            rows=rows,
            HW=math.prod(problem.x.shape[2:]),
        )


class Nhwc(Variant):
    """A vector of channels a thread."""

    name = "nhwc"
    dtypes = elements.FLOATS

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        channels = min(x.channels_padded, y.channels_padded)
        return launch(
            Kernel(
                file="globalaveragepool.cu", entry="globalaveragepool_nhwc", defines=elements.defines(x.dtype)
            ),
            **tiling.vectors(channels=channels, rows=x.shape[0], threads=32),
            x=x,
            y=y,
            N=x.shape[0],
            C=channels,
            HW=math.prod(x.shape[2:]),
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
        )


CASES = {
    "h differs from w": Case(operator=GlobalAveragePool(), shapes=((2, 19, 7, 9),)),
    "one pixel": Case(operator=GlobalAveragePool(), shapes=((3, 16, 1, 1),)),
    "more images than a block": Case(operator=GlobalAveragePool(), shapes=((70, 3, 2, 2),)),
    "more channels than a block": Case(operator=GlobalAveragePool(), shapes=((1, 1100, 3, 2),)),
    "float16": Case(operator=GlobalAveragePool(), shapes=((2, 19, 7, 9),), dtype="float16"),
    "1-D": Case(operator=GlobalAveragePool(), shapes=((2, 5, 11),)),
    "3-D": Case(operator=GlobalAveragePool(), shapes=((2, 5, 3, 4, 2),)),
}
