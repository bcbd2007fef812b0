"""Concat: tensors one behind the other along an axis.

Shapes    x0, x1, ... equal but along `axis` -> y, any rank, any type
Source    ONNX operator Concat
Not here  the concatenation that costs nothing, its inputs written in place: the plan sees to that
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Launch
from minicnn.strided import move_steps


class Copy(Variant):
    """Each input copied to its place in y."""

    name = "copy"
    dtypes = None

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        y, axis = problem.y, problem.operator.axis
        first = 0
        launches: list[Launch] = []
        for x in problem.inputs:
            assert x is not None
            launches += move_steps(x.shape, x, x.strides, y, y.strides, y_first=first * y.strides[axis])
            first += x.shape[axis]
        return tuple(launches)


@operator("Concat", opsets=(4, None))
@dataclass(frozen=True, kw_only=True)
class Concat:
    axis: int

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        shape = types[0].extents
        if not -len(shape) <= self.axis < len(shape):
            accepted = f"{-len(shape)} to {len(shape) - 1}"
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=accepted)
        for other in types[1:]:
            if other.dtype != types[0].dtype or self._others(other.extents) != self._others(shape):
                raise ShapeError("inputs that differ not only along the axis", expected=types[0], found=other)
        axis = self.axis % len(shape)
        total = sum(t.extents[axis] for t in types)
        return (replace(types[0], shape=(*shape[:axis], total, *shape[axis + 1 :])),)

    def _others(self, shape: Shape) -> Shape | None:
        """All extents but the one along the axis; None where there is no such axis."""
        if not -len(shape) <= self.axis < len(shape):
            return None
        axis = self.axis % len(shape)
        return (*shape[:axis], -1, *shape[axis + 1 :])

    def variants(self) -> tuple[Variant, ...]:
        return (Copy(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays, axis=self.axis)

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


CASES = {
    "channels, odd counts": Case(operator=Concat(axis=1), shapes=((2, 5, 3, 7), (2, 18, 3, 7), (2, 1, 3, 7))),
    "channels that fill their padding": Case(operator=Concat(axis=1), shapes=((2, 16, 3, 5), (2, 32, 3, 5))),
    "batches": Case(operator=Concat(axis=0), shapes=((1, 5, 3, 7), (2, 5, 3, 7))),
    "rows": Case(operator=Concat(axis=2), shapes=((2, 5, 3, 7), (2, 5, 1, 7))),
    "columns, counted from the end": Case(operator=Concat(axis=-1), shapes=((2, 5, 3, 7), (2, 5, 3, 1))),
    "a constant": Case(operator=Concat(axis=1), shapes=((2, 5, 3, 7), (2, 4, 3, 7)), constants=(1,)),
    "one input": Case(operator=Concat(axis=1), shapes=((2, 5, 3, 7),)),
    "an empty input": Case(operator=Concat(axis=1), shapes=((2, 5), (2, 0), (2, 3))),
    "rank 1": Case(operator=Concat(axis=0), shapes=((3,), (4,))),
    "8-byte integers": Case(operator=Concat(axis=1), shapes=((2, 3), (2, 4)), dtype="int64"),
    "bytes": Case(operator=Concat(axis=0), shapes=((2, 3), (1, 3)), dtype="bool"),
}
