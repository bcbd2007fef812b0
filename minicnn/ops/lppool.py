"""LpPool, GlobalLpPool, GlobalMaxPool: norms of windows, norms and greatest values of whole images.

Shapes    x (N, C, H, W) -> y (N, C, P, Q), float32; 1-D: H = R = P = 1; 3-D too
          Global: any spatial axes -> 1 each
Source    ONNX operators LpPool, GlobalLpPool, GlobalMaxPool
Not here  GlobalLpPool with p other than 1 and 2: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.geometry import Window
from minicnn.graph import TensorType
from minicnn.pooling import Pooling
from minicnn.reduction import Reduction, axes_of, reduce_steps
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Step
from minicnn.window import taps


@operator("LpPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class LpPool(Pooling):
    stem: ClassVar[str] = "lppool"
    p: float = 2  # a whole number since opset 2

    def __post_init__(self) -> None:
        if self.p <= 0:
            raise ValueError(f"p {self.p}, not above 0")

    def kernel_arguments(self, windows: tuple[Window, ...]) -> dict[str, Any]:
        return super().kernel_arguments(windows) | {"power": float(self.p)}

    def reference(self, x: np.ndarray) -> np.ndarray:
        windows = self.pooled(x.shape)
        total = np.zeros((*x.shape[:2], *(one.out for one in windows)))
        for tap, is_inside in taps(np.abs(x.astype(np.float64)) ** self.p, windows):
            total += np.where(is_inside, tap, 0.0)
        return total ** (1 / self.p)

    def bound(self, x: np.ndarray) -> np.ndarray:
        """The root takes a p-th of the sum's relative error; a power function is off by p * 16 units."""
        powers = 0 if self.p in (1, 2) else 32 * max(self.p, 1.0)
        sums = 4 * math.sqrt(math.prod(self.kernel_shape)) / self.p + 2
        return (sums + powers) * UNIT_ROUNDOFF * self.reference(x)


class Reduced(Variant):
    """A vector of channels, or a channel, a thread."""

    name = "reduced"

    def orders(self, problem: Problem) -> Orders:
        if len(problem.x.shape) > 5:  # channel padding could keep spatial axes from merging
            return Orders(inputs=("NCHW",), outputs=("NCHW",))
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        axes = axes_of(x, y, tuple(range(2, len(x.shape))))
        return reduce_steps(x, y, axes, problem.operator.reduction())


class _Global:
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if len(x.extents) < 3 or 0 in x.extents:
            raise ShapeError("too few axes, or an empty one", expected="x (N, C, H, W)", found=x.extents)
        return (TensorType(dtype=x.dtype, shape=(*x.extents[:2], *(1 for _ in x.extents[2:]))),)

    def variants(self) -> tuple[Variant, ...]:
        return (Reduced(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.x.shape))


@operator("GlobalMaxPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class GlobalMaxPool(_Global):
    def reduction(self) -> Reduction:
        return Reduction(kind="maximum")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)

    def bound(self, x: np.ndarray) -> float:
        return 0.0


@operator("GlobalLpPool", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class GlobalLpPool(_Global):
    p: float = 2  # a whole number since opset 2

    def __post_init__(self) -> None:
        if self.p not in (1, 2):
            raise ValueError(f"p {self.p}, neither 1 nor 2")

    def reduction(self) -> Reduction:
        return Reduction(kind="sizes") if self.p == 1 else Reduction(kind="squares", finish="root")

    def reference(self, x: np.ndarray) -> np.ndarray:
        sizes = np.abs(x.astype(np.float64)) ** self.p
        return sizes.sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / self.p)

    def bound(self, x: np.ndarray) -> np.ndarray:
        return (4 * math.sqrt(math.prod(x.shape[2:])) + 2) * UNIT_ROUNDOFF * self.reference(x)


def _case(x: tuple[int, ...], pool: LpPool) -> Case:
    return Case(operator=pool, shapes=(x,))


CASES = {
    "h differs from w": _case((2, 3, 9, 14), LpPool(kernel_shape=(3, 2))),
    "strides and uneven pads": _case(
        (1, 19, 9, 8), LpPool(kernel_shape=(3, 3), strides=(2, 3), pads=(0, 1, 2, 1))
    ),
    "sums of sizes": _case((1, 18, 7, 8), LpPool(kernel_shape=(3, 3), p=1)),
    "a third power": _case((1, 5, 7, 8), LpPool(kernel_shape=(3, 3), p=3)),
    "dilated": _case((1, 16, 9, 10), LpPool(kernel_shape=(3, 2), dilations=(2, 3), pads=(2, 1, 1, 1))),
    "ceil_mode": _case((1, 5, 8, 7), LpPool(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)),
    "SAME_UPPER": _case((1, 16, 7, 8), LpPool(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER")),
    "wider than a block": _case((1, 2, 2, 700), LpPool(kernel_shape=(1, 2))),
    "1-D": _case((2, 18, 23), LpPool(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
    "3-D": _case((2, 3, 5, 7, 6), LpPool(kernel_shape=(2, 3, 3), strides=(1, 2, 1), pads=(1, 0, 1, 1, 1, 1))),
    "3-D, all axes different": _case(
        (1, 2, 6, 9, 20),
        LpPool(kernel_shape=(3, 2, 4), strides=(2, 1, 6), dilations=(3, 4, 5), pads=(1, 1, 0, 0, 0, 3)),
    ),
    "3-D, a third power": _case((1, 2, 5, 4, 6), LpPool(kernel_shape=(2, 2, 3), p=3)),
    "greatest of an image": Case(operator=GlobalMaxPool(), shapes=((2, 19, 7, 9),), ranges={0: (-3.0, -1.0)}),
    "greatest, more channels than a block": Case(operator=GlobalMaxPool(), shapes=((1, 1100, 3, 2),)),
    "greatest, 1-D": Case(operator=GlobalMaxPool(), shapes=((2, 5, 11),)),
    "greatest, 3-D": Case(operator=GlobalMaxPool(), shapes=((2, 5, 3, 4, 2),)),
    "greatest, one pixel": Case(operator=GlobalMaxPool(), shapes=((3, 16, 1, 1),)),
    "norm of an image": Case(operator=GlobalLpPool(), shapes=((2, 19, 7, 9),)),
    "norm of an image, sizes": Case(operator=GlobalLpPool(p=1), shapes=((2, 19, 7, 9),)),
    "norm, 3-D": Case(operator=GlobalLpPool(), shapes=((2, 5, 3, 4, 2),)),
}
