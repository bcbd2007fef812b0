"""Trilu: one triangle of every matrix, the other set to zero.

Shapes    x (any axes, R, C) -> y of the same shape, any type
Source    ONNX operator Trilu
Not here  a diagonal computed at run time
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import grid_and_block


class Triangle(Variant):
    name = "triangle"
    dtypes = tuple(elements.CODES)

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, op = problem.x, problem.operator
        *outer, rows, columns = x.shape
        if 0 in x.shape:
            return ()
        return launch(
            Kernel(file="trilu.cu", entry="trilu", defines=elements.defines(x.dtype)),
            **grid_and_block(columns, rows, math.prod(outer)), x=x, y=problem.y,
            R=rows, C=columns, upper=op.upper, k=max(min(op.k, columns), -rows),
        )  # fmt: skip


@operator("Trilu", opsets=(14, None), parameters={1: "k"})
@dataclass(frozen=True, kw_only=True)
class Trilu:
    """What lies on the diagonal k above the main one, and above (`upper`) or below it."""

    k: int = 0
    upper: int = 1

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(x.extents) < 2:
            raise ShapeError("no matrix", found=x, expected="rank 2 or more")
        if not isinstance(self.k, int):
            raise ShapeError("k is one whole number", tensor="k", found=self.k)
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Triangle(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.triu(x, self.k) if self.upper else np.tril(x, self.k)

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "upper triangle": Case(operator=Trilu(), shapes=((5, 7),)),
    "lower triangle": Case(operator=Trilu(upper=0), shapes=((7, 5),)),
    "upper triangle above the diagonal": Case(operator=Trilu(k=2), shapes=((2, 3, 5, 5),)),
    "lower triangle below the diagonal": Case(operator=Trilu(upper=0, k=-1), shapes=((3, 5, 5),)),
    "more rows and columns than a block": Case(operator=Trilu(k=3), shapes=((2, 41, 37),)),
    "far outside": Case(operator=Trilu(k=99), shapes=((5, 5),)),
    "bools": Case(operator=Trilu(), shapes=((5, 5),), dtype="bool"),
    "8-byte integers": Case(operator=Trilu(upper=0), shapes=((5, 5),), dtype="int64"),
    "float16": Case(operator=Trilu(), shapes=((5, 5),), dtype="float16"),
}
