"""LeakyRelu: negative numbers times a slope.

Shapes    x -> y of the same shape, any rank, float32
Source    ONNX operator LeakyRelu
Not here  fusion into a convolution's epilogue: epilogue.cuh has no branch for a slope
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import row_steps


class Elementwise(Variant):
    name = "elementwise"
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        kernel = Kernel(file="leakyrelu.cu", entry="leakyrelu")
        return row_steps(kernel, problem.x, problem.y, alpha=problem.operator.slope())


@operator("LeakyRelu", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class LeakyRelu:
    alpha: float = 0.01

    def slope(self) -> float:
        """alpha as a kernel gets it: 0.01 isn't a float32."""
        return float(np.float32(self.alpha))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Elementwise(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=2 * math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Two float32 have an exact product in float64. It rounds to float32 once, beyond it to infinity."""
        exact = x.astype(np.float64)
        return np.where(exact < 0, self.slope() * exact, exact).astype(np.float32).astype(np.float64)

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "the default slope": Case(operator=LeakyRelu(), shapes=((2, 5, 3, 7),)),
    "channels fill their padding": Case(operator=LeakyRelu(alpha=0.25), shapes=((1, 16, 4, 5),)),
    "more elements than a block has threads": Case(operator=LeakyRelu(alpha=0.1), shapes=((2, 33, 9, 11),)),
    "a slope below 0": Case(operator=LeakyRelu(alpha=-0.3), shapes=((2, 5, 3, 7),)),
    "a slope beyond 1: not max(x, alpha * x)": Case(operator=LeakyRelu(alpha=1.7), shapes=((2, 5, 3, 7),)),
    "a slope of 0: Relu": Case(operator=LeakyRelu(alpha=0.0), shapes=((3, 10),)),
    "products beyond float32": Case(
        operator=LeakyRelu(alpha=3.0), shapes=((2, 40),), ranges={0: (-3e38, 3e38)}
    ),
    "products below the normal numbers": Case(
        operator=LeakyRelu(alpha=0.3), shapes=((2, 40),), ranges={0: (-4e-38, 4e-38)}
    ),
    "rank 3": Case(operator=LeakyRelu(alpha=-2.5), shapes=((3, 5, 4),)),
    "rank 2": Case(operator=LeakyRelu(), shapes=((3, 10),)),
    "rank 1": Case(operator=LeakyRelu(), shapes=((7,),)),
    "a scalar": Case(operator=LeakyRelu(alpha=-2.5), shapes=((),), ranges={0: (-1.0, -0.5)}),
}
