"""Relu: negative numbers become zero.

Shapes    x -> y of the same shape, any rank, float32 or float16
Source    ONNX operator Relu
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import row_steps


class Elementwise(Variant):
    name = "elementwise"
    dtypes = elements.FLOATS
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        kernel = Kernel(file="relu.cu", entry="relu", defines=elements.defines(problem.x.dtype))
        return row_steps(kernel, problem.x, problem.y)


@operator("Relu", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Relu:
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Elementwise(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, 0, x).astype(np.float64)

    def bound(self, x: np.ndarray) -> float:
        return 0.0

    def fused_parameters(self) -> tuple[float, float]:
        """alpha and beta of the epilogue that does the same."""
        return 0.0, 0.0


CASES = {
    "one dense row": Case(operator=Relu(), shapes=((2, 5, 3, 7),)),
    "channels fill their padding": Case(operator=Relu(), shapes=((1, 16, 4, 5),)),
    "more elements than a block has threads": Case(operator=Relu(), shapes=((2, 33, 9, 11),)),
    "rank 2": Case(operator=Relu(), shapes=((3, 10),)),
    "rank 1": Case(operator=Relu(), shapes=((7,),)),
    "a scalar": Case(operator=Relu(), shapes=((),)),
    "float16": Case(operator=Relu(), shapes=((2, 5, 3, 7),), dtype="float16"),
}
