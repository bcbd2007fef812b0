"""ReduceMean: the mean along some axes, all of them if none is named.

Shapes    x -> y without the axes, or (keepdims) with extent 1 there, float32
Not here  more than three averaged axes that don't merge
Source    ONNX operator ReduceMean
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import merge_axes
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import walks

UNIT_ROUNDOFF = 2.0**-24
LOOPS = 3  # averaged axes of the kernel


class Direct(Variant):
    """A thread an element of y."""

    name = "direct"

    def applies(self, problem: Problem) -> str:
        if 0 in problem.x.shape:
            return "the mean of nothing"
        loops = len(self._averaged(problem)[0])
        return f"{loops} averaged axes that don't merge, more than {LOOPS}" if loops > LOOPS else ""

    def orders(self, problem: Problem) -> Orders:
        x, y = problem.x.shape, problem.y.shape
        if len(x) > 5:  # channel padding could keep a fourth averaged axis from merging
            return Orders(inputs=("NCHW",), outputs=("NCHW",))
        return Orders(inputs=("any",), outputs=("same" if x[:2] == y[:2] and len(y) >= 2 else "any",))

    def _averaged(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of the averaged axes, merged, x's innermost first."""
        x = problem.x
        axes = sorted(problem.operator.averaged(len(x.shape)), key=lambda axis: x.strides[axis], reverse=True)
        extents, (strides,) = merge_axes(tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes))
        return extents[::-1], strides[::-1]

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y = problem.x, problem.y
        extents, strides = self._averaged(problem)
        unused = LOOPS - len(extents)
        loops: dict[str, Any] = {f"R{i}": extent for i, extent in enumerate(extents + (1,) * unused)}
        loops |= {f"r{i}": stride for i, stride in enumerate(strides + (0,) * unused)}
        averaged = problem.operator.averaged(len(x.shape))
        kept = [axis for axis in range(len(x.shape)) if axis not in averaged]
        extents, x_strides = tuple(x.shape[axis] for axis in kept), tuple(x.strides[axis] for axis in kept)
        y_strides = tuple(y.strides[axis] for axis in kept) if len(y.shape) == len(x.shape) else y.strides
        kernel = Kernel(file="reducemean.cu", entry="reducemean")
        launches: list[Launch] = []
        for walk in walks(extents, x_strides, y_strides):
            places: dict[str, Any] = {"x": x.view(walk.starts[0]), "y": y.view(walk.starts[1])}
            launches += launch(kernel, **walk.geometry(), **places, **loops, **walk.arguments("x", "y"))
        return tuple(launches)


@operator("ReduceMean", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceMean:
    axes: tuple[int, ...] | None = None
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    def averaged(self, rank: int) -> tuple[int, ...]:
        """The axes, counted from the front."""
        if not self.axes:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted({axis % rank for axis in self.axes}))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        rank = len(x.extents)
        if any(not -rank <= axis < rank for axis in self.axes or ()):
            accepted = f"{-rank} to {rank - 1}"
            raise ShapeError("an axis that isn't the input's", found=self.axes, accepted=accepted)
        averaged = self.averaged(rank)
        shape = tuple(1 if axis in averaged else extent for axis, extent in enumerate(x.extents))
        if not self.keepdims:
            shape = tuple(extent for axis, extent in enumerate(x.extents) if axis not in averaged)
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.x.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.astype(np.float64).mean(axis=self.averaged(x.ndim), keepdims=bool(self.keepdims)))

    def bound(self, x: np.ndarray) -> np.ndarray:
        """Of a sum of K terms, divided by K, and the division's own rounding."""
        size = math.prod(x.shape[axis] for axis in self.averaged(x.ndim))
        return 4 * math.sqrt(size) * UNIT_ROUNDOFF * self.reference(np.abs(x))


CASES = {
    "a pixel for the image": Case(operator=ReduceMean(axes=(2, 3)), shapes=((2, 5, 9, 7),)),
    "the same, axes dropped": Case(operator=ReduceMean(axes=(-1, -2), keepdims=0), shapes=((2, 21, 3, 7),)),
    "channels": Case(operator=ReduceMean(axes=(1,)), shapes=((2, 5, 3, 7),)),
    "channels, dropped": Case(operator=ReduceMean(axes=(1,), keepdims=0), shapes=((2, 5, 3, 7),)),
    "every other axis": Case(operator=ReduceMean(axes=(0, 2)), shapes=((2, 5, 3, 7),)),
    "all but rows: three loops in NHWC": Case(operator=ReduceMean(axes=(0, 1, 3)), shapes=((2, 5, 3, 7),)),
    "all": Case(operator=ReduceMean(keepdims=0), shapes=((2, 5, 3, 7),)),
    "none": Case(operator=ReduceMean(noop_with_empty_axes=1), shapes=((2, 5, 3, 7),)),
    "many terms": Case(operator=ReduceMean(axes=(1,)), shapes=((2, 5000),), ranges={0: (0.5, 1.0)}),
    "rank 5": Case(operator=ReduceMean(axes=(0, 2, 4)), shapes=((2, 3, 2, 3, 4),)),
    "rank 6": Case(operator=ReduceMean(axes=(0, 2, 4)), shapes=((2, 3, 2, 3, 2, 3),)),
    "rank 1": Case(operator=ReduceMean(axes=(0,)), shapes=((7,),)),
}
