"""LpNormalization: numbers along an axis scaled to a norm of one.

Shapes    x -> y of the same shape, float32
Source    ONNX operator LpNormalization; zeros, whose norm is 0, stay zeros
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.ops.softmax import group_walks
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch


class Thread(Variant):
    """A thread a group."""

    name = "thread"
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        launches: list[Launch] = []
        for walk, group in group_walks(problem):
            kernel = Kernel(file="lpnormalization.cu", entry="lpnormalization")
            scalars = walk.arguments("x", "y") | {"power": problem.operator.p}
            launches += launch(kernel, **walk.geometry(), **group, **scalars)
        return tuple(launches)


@operator("LpNormalization", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class LpNormalization:
    axis: int = -1
    p: int = 2

    def __post_init__(self) -> None:
        if self.p not in (1, 2):
            raise ValueError(f"p {self.p}, neither 1 nor 2")

    def group_axes(self, shape: Shape) -> range:
        axis = self.axis % len(shape)
        return range(axis, axis + 1)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        rank = len(x.extents)
        if not -rank <= self.axis < rank:
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=f"{-rank} to {rank - 1}")
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Thread(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=3 * math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        exact = x.astype(np.float64)
        norm = np.linalg.norm(exact, ord=self.p, axis=self.axis, keepdims=True)
        return np.where(norm == 0, exact, exact / norm)

    def bound(self, x: np.ndarray) -> np.ndarray:
        return (4 * math.sqrt(x.shape[self.axis]) + 3) * UNIT_ROUNDOFF * np.abs(self.reference(x))


CASES = {
    "an embedding": Case(operator=LpNormalization(), shapes=((3, 128),)),
    "along the channels": Case(operator=LpNormalization(axis=1), shapes=((2, 19, 5, 7),)),
    "sizes": Case(operator=LpNormalization(axis=2, p=1), shapes=((2, 5, 9, 7),)),
    "many terms": Case(operator=LpNormalization(), shapes=((2, 1500),)),
    "zeros stay zeros": Case(operator=LpNormalization(), shapes=((3, 10),), ranges={0: (0.0, 0.0)}),
    "rank 1": Case(operator=LpNormalization(axis=0), shapes=((7,),)),
    "more groups than a block": Case(operator=LpNormalization(axis=1), shapes=((40, 3, 7),)),
    "rank 6": Case(operator=LpNormalization(axis=1), shapes=((2, 3, 2, 3, 2, 3),)),
}
