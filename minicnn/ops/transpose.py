"""Transpose: the axes in another order.

Shapes    x -> y, extent i of y that of axis perm[i] of x; any rank, any type
Source    ONNX operator Transpose
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Launch
from minicnn.strided import move_steps


class Copy(Variant):
    """One strided copy; what order y has in memory is only another permutation."""

    name = "copy"
    dtypes = None

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y = problem.x, problem.y
        strides = tuple(x.strides[axis] for axis in problem.operator.permutation(len(x.shape)))
        return move_steps(y.shape, x, strides, y, y.strides)


@operator("Transpose", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Transpose:
    perm: tuple[int, ...] | None = None  # None: all axes reversed

    def permutation(self, rank: int) -> tuple[int, ...]:
        return tuple(reversed(range(rank))) if self.perm is None else self.perm

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        perm = self.permutation(len(x.extents))
        if sorted(perm) != list(range(len(x.extents))):
            raise ShapeError("perm isn't a permutation of the input's axes", found=perm, expected=x)
        return (replace(x, shape=tuple(x.extents[axis] for axis in perm)),)

    def variants(self) -> tuple[Variant, ...]:
        return (Copy(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.permutation(x.ndim))

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "an image's channels to the end": Case(operator=Transpose(perm=(0, 2, 3, 1)), shapes=((2, 5, 3, 7),)),
    "an image's channels to the front": Case(operator=Transpose(perm=(0, 3, 1, 2)), shapes=((2, 9, 11, 3),)),
    "tiles with a tail": Case(operator=Transpose(perm=(1, 0)), shapes=((45, 37),)),
    "reversed by default": Case(operator=Transpose(), shapes=((2, 3, 4, 5),)),
    "nothing moves": Case(operator=Transpose(perm=(0, 1, 2)), shapes=((2, 3, 4),)),
    "a channel shuffle, rank 5": Case(operator=Transpose(perm=(0, 2, 1, 3, 4)), shapes=((2, 3, 4, 5, 3),)),
    "depth to space, rank 6": Case(operator=Transpose(perm=(0, 3, 4, 1, 5, 2)), shapes=((2, 2, 3, 4, 3, 5),)),
    "six axes, none merges": Case(operator=Transpose(), shapes=((2, 3, 2, 3, 2, 3),)),
    "rank 1": Case(operator=Transpose(), shapes=((7,),)),
    "8-byte integers": Case(operator=Transpose(perm=(1, 0)), shapes=((5, 9),), dtype="int64"),
    "bytes": Case(operator=Transpose(perm=(1, 0)), shapes=((5, 9),), dtype="bool"),
}
