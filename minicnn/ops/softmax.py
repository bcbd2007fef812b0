"""Softmax, LogSoftmax, Hardmax: numbers to shares that sum to one, their logarithms, 1 for the largest.

Shapes    x -> y of the same shape, float32
Source    ONNX operators of these names. From opset 13 on the shares along one axis sum to one; before, those
          along `axis` and all axes behind it together
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape, ceil_div, merge_axes
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import Walk, walks

UNIT_ROUNDOFF = 2.0**-24
SMALLEST = 2.0**-126  # an exp below the normal numbers may become 0
WARP_FROM = 64  # elements of a group: two for every lane of a warp
WARPS = 4  # groups of a block


class Thread(Variant):
    """A thread a group."""

    name = "thread"
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        x = problem.x.shape
        long_axes = [axis for axis in problem.operator.group_axes(x) if x[axis] > 1]
        return Orders(inputs=("any" if len(long_axes) <= 1 else "NCHW",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        launches: list[Launch] = []
        for walk, group in group_walks(problem):
            kernel = Kernel(file="softmax.cu", entry=problem.operator.STEM)
            launches += launch(kernel, **walk.geometry(), **group, **walk.arguments("x", "y"))
        return tuple(launches)


class Warp(Thread):
    """A warp a group."""

    name = "warp"

    def applies(self, problem: Problem) -> str:
        size = problem.operator.group_size(problem.x.shape)
        return "" if size >= WARP_FROM else f"groups of {size}, fewer than {WARP_FROM}"

    def declines(self, problem: Problem) -> str:
        return (
            "lanes of a warp wait for each other, one after the other on a CPU"
            if problem.target.kind == "host"
            else ""
        )

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        launches: list[Launch] = []
        for walk, group in group_walks(problem):
            groups, rows, *planes = walk.extents
            grid = (ceil_div(groups, WARPS), rows, math.prod(planes))
            kernel = Kernel(file="softmax.cu", entry=f"{problem.operator.STEM}_warp")
            launches += launch(kernel, grid=grid, block=(32, WARPS, 1), **group, **walk.arguments("x", "y"))
        return tuple(launches)


def group_walks(problem: Problem) -> list[tuple[Walk, dict[str, Any]]]:
    """Walks over the groups, and the kernel arguments that tell of one group."""
    x, y = problem.x, problem.y
    inside = problem.operator.group_axes(x.shape)
    if not math.prod(x.shape):
        return []
    outside = [axis for axis in range(len(x.shape)) if axis not in inside]
    of_memory = (x.shape, x.strides, y.strides)
    sizes, steps = merge_axes(*(tuple(v[axis] for axis in inside) for v in of_memory))
    (size, *more), (x_step, y_step) = sizes, (own[0] for own in steps)
    assert not more, "the axes of a group don't merge"
    result = []
    for walk in walks(*(tuple(v[axis] for axis in outside) for v in of_memory)):
        x_start, y_start = walk.starts
        group = {"x": x.view(x_start), "y": y.view(y_start), "R": size, "x_step": x_step, "y_step": y_step}
        result.append((walk, group))
    return result


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """What the three share: which elements make a group."""

    STEM: ClassVar[str]  # of the entries in softmax.cu

    axis: int | None = None  # None: the last one; before opset 13 the second
    opset: int = 13

    def group_axes(self, shape: Shape) -> range:
        rank = len(shape)
        axis = (1 if self.opset < 13 else -1) if self.axis is None else self.axis
        axis = axis + rank if axis < 0 else axis
        return range(axis, rank) if self.opset < 13 else range(axis, axis + 1)

    def group_size(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self.group_axes(shape))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        axes, rank = self.group_axes(x.extents), len(x.extents)
        if not 0 <= axes.start < max(axes.stop, 1) <= rank:
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=f"{-rank} to {rank - 1}")
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Thread(), Warp())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=5 * math.prod(problem.y.shape))  # compare, subtract, exp, add, divide


@operator("Softmax", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Softmax(_Shares):
    STEM = "softmax"

    def reference(self, x: np.ndarray) -> np.ndarray:
        axes = tuple(self.group_axes(x.shape))
        exact = x.astype(np.float64)
        shares = np.exp(exact - exact.max(axis=axes, keepdims=True))
        return shares / shares.sum(axis=axes, keepdims=True)

    def bound(self, x: np.ndarray) -> np.ndarray:
        """x - m rounds by |x - m| u, which is exp's relative error, beside its own 2 ulp; the sum has that of
        its terms and its own roundings; the division one more."""
        axes = tuple(self.group_axes(x.shape))
        exact = x.astype(np.float64)
        y = self.reference(x)
        below = exact.max(axis=axes, keepdims=True) - exact
        of_sum = (y * (below + 4)).sum(axis=axes, keepdims=True) + 4 * math.sqrt(self.group_size(x.shape))
        return UNIT_ROUNDOFF * y * (below + 4 + of_sum + 1) + SMALLEST


@operator("LogSoftmax", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class LogSoftmax(_Shares):
    STEM = "logsoftmax"

    def reference(self, x: np.ndarray) -> np.ndarray:
        axes = tuple(self.group_axes(x.shape))
        exact = x.astype(np.float64)
        exact = exact - exact.max(axis=axes, keepdims=True)
        return exact - np.log(np.exp(exact).sum(axis=axes, keepdims=True))

    def bound(self, x: np.ndarray) -> np.ndarray:
        """As of Softmax's sum; its relative error is the logarithm's absolute one."""
        axes = tuple(self.group_axes(x.shape))
        exact = x.astype(np.float64)
        below = exact.max(axis=axes, keepdims=True) - exact
        shares = np.exp(-below)
        total = shares.sum(axis=axes, keepdims=True)
        of_sum = (shares / total * (below + 4)).sum(axis=axes, keepdims=True) + 4 * math.sqrt(
            self.group_size(x.shape)
        )
        return UNIT_ROUNDOFF * (of_sum + 2 * below + 6 * np.log(total) + 2)


@operator("Hardmax", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Hardmax(_Shares):
    """1 for the largest of a group, the first of equals, 0 for others; NaN is larger than any number."""

    STEM = "hardmax"

    def variants(self) -> tuple[Variant, ...]:
        return (Thread(),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        axes = self.group_axes(x.shape)
        flat = x.reshape(*x.shape[: axes.start], -1, *x.shape[axes.stop :])
        first = np.expand_dims(flat.argmax(axis=axes.start), axes.start)
        y = np.zeros(flat.shape)
        np.put_along_axis(y, first, 1.0, axis=axes.start)
        return y.reshape(x.shape)

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "classes": Case(operator=Softmax(), shapes=((3, 10),)),
    "a thousand classes": Case(operator=Softmax(), shapes=((2, 1000),)),
    "exp alone would overflow": Case(operator=Softmax(), shapes=((3, 70),), ranges={0: (-200.0, 200.0)}),
    "exp alone would vanish": Case(operator=Softmax(), shapes=((3, 70),), ranges={0: (-300.0, -200.0)}),
    "along the channels": Case(operator=Softmax(axis=1), shapes=((2, 5, 3, 7),)),
    "along many channels": Case(operator=Softmax(axis=1), shapes=((2, 67, 3, 3),)),
    "along rows": Case(operator=Softmax(axis=-2), shapes=((2, 5, 3, 7),)),
    "along rows, more columns than a block": Case(operator=Softmax(axis=-2), shapes=((2, 5, 3, 35),)),
    "along many rows": Case(operator=Softmax(axis=2), shapes=((2, 3, 67, 5),)),
    "opset 9 flattens behind the axis": Case(operator=Softmax(opset=9), shapes=((2, 5, 3, 7),)),
    "opset 9, one pixel": Case(operator=Softmax(opset=9), shapes=((2, 70, 1, 1),)),
    "opset 9, axis 0": Case(operator=Softmax(axis=0, opset=9), shapes=((3, 5),)),
    "rank 1": Case(operator=Softmax(axis=0), shapes=((7,),)),
    "a group of one": Case(operator=Softmax(), shapes=((5, 1),)),
    "rank 6: more groups' axes than a grid has": Case(operator=Softmax(axis=1), shapes=((2, 3, 2, 3, 2, 3),)),
    "logarithms": Case(operator=LogSoftmax(), shapes=((3, 10),)),
    "logarithms, a thousand classes": Case(operator=LogSoftmax(), shapes=((2, 1000),)),
    "logarithms, along many channels": Case(operator=LogSoftmax(axis=1), shapes=((2, 67, 3, 3),)),
    "logarithms, along rows": Case(operator=LogSoftmax(axis=-2), shapes=((2, 5, 3, 35),)),
    "logarithms, along many rows": Case(operator=LogSoftmax(axis=2), shapes=((2, 3, 67, 5),)),
    "logarithms, exp alone would vanish": Case(
        operator=LogSoftmax(), shapes=((3, 7),), ranges={0: (-300.0, 300.0)}
    ),
    "logarithms, opset 9": Case(operator=LogSoftmax(opset=9), shapes=((2, 5, 3, 7),)),
    "the largest": Case(operator=Hardmax(), shapes=((3, 10),)),
    "the largest, the first of equals": Case(operator=Hardmax(), shapes=((4, 30),), ranges={0: (0.5, 0.5)}),
    "the largest along the channels": Case(operator=Hardmax(axis=1), shapes=((2, 19, 3, 7),)),
    "the largest along rows": Case(operator=Hardmax(axis=-2), shapes=((2, 5, 3, 35),)),
    "the largest, opset 9": Case(operator=Hardmax(opset=9), shapes=((2, 5, 3, 7),)),
}
