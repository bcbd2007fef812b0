"""LRN: each value divided by the strength of its neighbours across channels.

Shapes    x (N, C, any spatial axes) -> y of the same shape, float32
Source    ONNX operator LRN; Krizhevsky, Sutskever, Hinton 2012, section 3.3
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import tiling
from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Step


@operator("LRN", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class LRN:
    size: int  # channels of a neighbourhood
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0

    @property
    def before(self) -> int:
        """Neighbours at lower channels; an even size has one more at higher ones."""
        return (self.size - 1) // 2

    @property
    def after(self) -> int:
        return self.size - 1 - self.before

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if len(x.extents) < 3:
            raise ShapeError("too few axes", expected="x (N, C, H, W)", found=x.extents)
        if self.size < 1:
            raise ShapeError(
                "a neighbourhood without channels", expected="size of 1 or more", found=self.size
            )
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape) * (2 * self.size + 3))

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        squares = np.zeros_like(x)
        channels = x.shape[1]
        for c in range(channels):
            first, last = max(c - self.before, 0), min(c + self.after, channels - 1)
            squares[:, c] = (x[:, first : last + 1] ** 2).sum(axis=1)
        return x / (self.bias + self.alpha / self.size * squares) ** self.beta

    def bound(self, x: np.ndarray) -> np.ndarray:
        """`size` squares summed, raised to beta; power, product and constants round by 16 units at most."""
        return (16 + 4 * math.sqrt(self.size) * abs(self.beta)) * UNIT_ROUNDOFF * np.abs(self.reference(x))


def _arguments(problem: Problem) -> dict[str, Any]:
    lrn = problem.operator
    return {
        "C": problem.x.shape[1],
        "before": min(lrn.before, problem.x.shape[1]),  # beyond the channels is nothing to sum
        "after": min(lrn.after, problem.x.shape[1]),
        "scale": lrn.alpha / lrn.size,
        "beta": lrn.beta,
        "bias": lrn.bias,
    }


class Direct(Variant):
    """One value a thread, its neighbours a plane apart."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        N, C, *spatial = problem.x.shape
        HW = math.prod(spatial)
        return launch(
            Kernel(file="lrn.cu", entry="lrn"),
            **tiling.planes(columns=HW, rows=C, planes=N),
            x=problem.x,
            y=problem.y,
            HW=HW,
            **_arguments(problem),
        )


class Nhwc(Variant):
    """A vector of channels a thread, its neighbours by shifted loads."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        pixels = x.shape[0] * math.prod(x.shape[2:])
        return launch(
            Kernel(file="lrn.cu", entry="lrn_nhwc"),
            **tiling.vectors(channels=x.shape[1], rows=pixels),
            x=x,
            y=y,
            pixels=pixels,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            **_arguments(problem),
        )


CASES = {
    "AlexNet's": Case(operator=LRN(size=5, alpha=1e-4, beta=0.75, bias=1.0), shapes=((2, 96, 5, 6),)),
    "strong enough to see": Case(
        operator=LRN(size=5, alpha=2.0, beta=0.75, bias=0.5), shapes=((1, 37, 4, 7),)
    ),
    "even size": Case(operator=LRN(size=4, alpha=1.0, beta=0.75), shapes=((1, 21, 3, 5),)),
    "wider than the channels": Case(operator=LRN(size=9, alpha=1.0, beta=0.75), shapes=((2, 3, 5, 4),)),
    "another power": Case(operator=LRN(size=3, alpha=1.0, beta=0.6, bias=2.0), shapes=((1, 18, 6, 5),)),
    "size 1": Case(operator=LRN(size=1, alpha=1.0), shapes=((1, 16, 2, 300),)),
    "1-D": Case(operator=LRN(size=3, alpha=1.0), shapes=((2, 6, 9),)),
}
