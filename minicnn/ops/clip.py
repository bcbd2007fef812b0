"""Clip: numbers kept between two limits; ReLU6 is Clip(0, 6).

Shapes    x -> y of the same shape, any rank, float32 or float16
Source    ONNX operator Clip
Not here  limits computed at run time
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

LARGEST = float(np.finfo(np.float32).max)  # an absent limit; infinity is clipped to it, as ONNX says


class Elementwise(Variant):
    name = "elementwise"
    dtypes = elements.FLOATS
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        low, high = problem.operator.limits()
        kernel = Kernel(file="clip.cu", entry="clip", defines=elements.defines(problem.x.dtype))
        return row_steps(kernel, problem.x, problem.y, low=low, high=high)


@operator("Clip", opsets=(6, None), parameters={1: "min", 2: "max"})
@dataclass(frozen=True, kw_only=True)
class Clip:
    min: float | None = None
    max: float | None = None

    def limits(self) -> tuple[float, float]:
        """Both limits as a kernel gets them."""
        low = np.float32(-LARGEST if self.min is None else self.min)
        high = np.float32(LARGEST if self.max is None else self.max)
        return float(low), float(high)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Elementwise(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=2 * math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        low, high = self.limits()
        return np.minimum(np.maximum(x.astype(np.float64), low), high)

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        """A limit, too, is rounded to float16 when it is stored."""
        return elements.storage_bound(self.reference(x), x.dtype)

    def fused_parameters(self) -> tuple[float, float]:
        """alpha and beta of the epilogue that does the same."""
        return self.limits()


CASES = {
    "relu6": Case(operator=Clip(min=0.0, max=6.0), shapes=((2, 5, 3, 7),), ranges={0: (-9.0, 9.0)}),
    "both limits inside the data": Case(operator=Clip(min=-0.3, max=0.2), shapes=((2, 33, 9, 11),)),
    "a lower limit alone": Case(operator=Clip(min=0.1), shapes=((3, 10),)),
    "an upper limit alone": Case(operator=Clip(max=0.1), shapes=((7,),)),
    "no limit": Case(operator=Clip(), shapes=((2, 3),)),
    "limits crossed: the upper one wins": Case(operator=Clip(min=0.5, max=-0.5), shapes=((2, 3, 4),)),
    "float16": Case(operator=Clip(min=-0.3, max=0.2), shapes=((2, 5, 3, 7),), dtype="float16"),
}
