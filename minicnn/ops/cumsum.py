"""CumSum: running sums along an axis.

Shapes    x -> y of the same shape; float32, float16 (summed in float32), float64, int32, int64
Source    ONNX operator CumSum
Not here  an axis computed at run time
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import walks


class Line(Variant):
    """A thread a line."""

    name = "line"
    dtypes = (*elements.FLOATS, *elements.INTEGERS, "float64")

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y, op = problem.x, problem.y, problem.operator
        axis = op.axis % len(x.shape)
        count = x.shape[axis]
        steps = [o.strides[axis] for o in (x, y)]
        firsts = [(count - 1) * step if op.reverse else 0 for step in steps]
        steps = [-step if op.reverse else step for step in steps]
        others = [i for i in range(len(x.shape)) if i != axis]
        extents, *strides = (tuple(own[i] for i in others) for own in (x.shape, x.strides, y.strides))
        kernel = Kernel(file="cumsum.cu", entry="cumsum", defines=elements.defines(x.dtype))
        launches: list[Launch] = []
        for walk in walks(extents, *strides) if count else ():
            x_view, y_view = (
                o.view(start + first) for o, start, first in zip((x, y), walk.starts, firsts, strict=True)
            )
            launches += launch(
                kernel, **walk.geometry(), x=x_view, y=y_view, A=count, x_step=steps[0], y_step=steps[1],
                exclusive=op.exclusive, **walk.arguments("x", "y"),
            )  # fmt: skip
        return tuple(launches)


@operator("CumSum", opsets=(11, None), parameters={1: "axis"})
@dataclass(frozen=True, kw_only=True)
class CumSum:
    axis: int
    exclusive: int = 0
    reverse: int = 0

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        rank = len(x.extents)
        if not -rank <= self.axis < rank:
            accepted = f"{-rank} to {rank - 1}"
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=accepted)
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Line(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        exact = x.astype(np.float64) if x.dtype.kind == "f" else x
        exact = np.flip(exact, self.axis) if self.reverse else exact
        sums = np.cumsum(exact, axis=self.axis, dtype=exact.dtype)
        if self.exclusive and x.shape[self.axis]:
            before = np.insert(sums, 0, 0, axis=self.axis)
            sums = np.delete(before, -1, axis=self.axis)
        return np.flip(sums, self.axis) if self.reverse else sums

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        """A rounding an addition, of a partial sum."""
        if x.dtype.kind != "f":
            return 0.0
        size = self.reference(np.abs(x))
        return x.shape[self.axis] * elements.UNIT_ROUNDOFF * size + elements.storage_bound(size, x.dtype)


_IMAGE = (2, 5, 3, 7)

CASES = {
    "along rows": Case(operator=CumSum(axis=-1), shapes=(_IMAGE,)),
    "along channels": Case(operator=CumSum(axis=1), shapes=((2, 19, 3, 7),)),
    "more lines than a block": Case(operator=CumSum(axis=1), shapes=((40, 3, 7),)),
    "backwards": Case(operator=CumSum(axis=2, reverse=1), shapes=(_IMAGE,)),
    "without the own one": Case(operator=CumSum(axis=0, exclusive=1), shapes=((5, 7),)),
    "without the own one, backwards": Case(
        operator=CumSum(axis=1, exclusive=1, reverse=1), shapes=((5, 7),)
    ),
    "a vector": Case(operator=CumSum(axis=0), shapes=((300,),)),
    "8-byte integers": Case(operator=CumSum(axis=1), shapes=((5, 7),), dtype="int64"),
    "float16": Case(operator=CumSum(axis=1), shapes=((5, 70),), dtype="float16"),
    "nothing": Case(operator=CumSum(axis=1), shapes=((5, 0),)),
    "float64": Case(operator=CumSum(axis=1, reverse=1), shapes=((5, 7),), dtype="float64"),
}
