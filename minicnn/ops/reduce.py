"""ReduceSum, -Mean, -Max, -Min, -Prod, -L1, -L2, -LogSum, -LogSumExp, -SumSquare: axes become one number.

Shapes    x -> y without the axes (all if none is named), or (keepdims) with extent 1 there, float32
Source    ONNX operators of these names; axes are an attribute or, since opset 13 (ReduceSum) or 18, an input
Not here  more than three reduced axes that don't merge; nothing to reduce; other types
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.reduction import LOOPS, Axes, Parts, Reduction, axes_of, parts_of, reduce_steps, split_steps
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Launch

FEW = 4096  # elements of y: fewer don't fill a GPU with a thread each
MANY = 1024  # terms: a second launch costs less than a thread that adds them one by one
PARTS = 64  # pieces of a long reduction


class Direct(Variant):
    """A thread an element of y."""

    name = "direct"

    def applies(self, problem: Problem) -> str:
        if 0 in problem.x.shape:
            return "nothing to reduce"
        loops = len(self.axes(problem).reduced)
        return f"{loops} reduced axes that don't merge, more than {LOOPS}" if loops > LOOPS else ""

    def orders(self, problem: Problem) -> Orders:
        x, y = problem.x.shape, problem.y.shape
        if len(x) > 5:  # channel padding could keep a fourth reduced axis from merging
            return Orders(inputs=("NCHW",), outputs=("NCHW",))
        return Orders(inputs=("any",), outputs=("same" if x[:2] == y[:2] and len(y) >= 2 else "any",))

    def axes(self, problem: Problem) -> Axes:
        return axes_of(problem.x, problem.y, problem.operator.reduced(len(problem.x.shape)))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        axes = self.axes(problem)
        return reduce_steps(problem.x, problem.y, axes, problem.operator.reduction(math.prod(axes.reduced)))


class Split(Direct):
    """Pieces of a long reduction a thread each, then the pieces together."""

    name = "split"

    def applies(self, problem: Problem) -> str:
        refused = super().applies(problem)
        if refused:
            return refused
        few, many = math.prod(problem.y.shape), math.prod(self.axes(problem).reduced)
        return "" if few < FEW and many >= MANY else f"{few} sums of {many} terms need no second stage"

    def _parts(self, problem: Problem) -> Parts:
        return parts_of(self.axes(problem), PARTS)

    def workspace_bytes(self, problem: Problem) -> int:
        return 4 * self._parts(problem).count * math.prod(problem.y.shape)

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        axes, workspace = self.axes(problem), problem.workspace
        assert workspace is not None
        reduction = problem.operator.reduction(math.prod(axes.reduced))
        return split_steps(problem.x, problem.y, workspace, axes, reduction, self._parts(problem))


@dataclass(frozen=True, kw_only=True)
class _Reduce:
    KIND: ClassVar[str]
    FINISH: ClassVar[str] = "none"

    axes: tuple[int, ...] | None = None
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    def reduction(self, count: int) -> Reduction:
        return Reduction(kind=self.KIND, finish=self.FINISH, count=count)

    def reduced(self, rank: int) -> tuple[int, ...]:
        """The axes, counted from the front."""
        if not self.axes:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted({axis % rank for axis in self.axes}))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        rank = len(x.extents)
        if self.keepdims not in (0, 1):  # others disagree about what that would mean
            raise ShapeError("keepdims is a switch", found=self.keepdims, accepted="0 or 1")
        if any(not -rank <= axis < rank for axis in self.axes or ()):
            accepted = f"{-rank} to {rank - 1}"
            raise ShapeError("an axis that isn't the input's", found=self.axes, accepted=accepted)
        reduced = self.reduced(rank)
        shape = tuple(1 if axis in reduced else extent for axis, extent in enumerate(x.extents))
        if not self.keepdims:
            shape = tuple(extent for axis, extent in enumerate(x.extents) if axis not in reduced)
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Split())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.x.shape))

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Of float64 numbers, axes kept with extent 1."""
        raise NotImplementedError

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray | float:
        """How far float32 may be from it. Here: the greatest and least are numbers of x."""
        return 0.0

    def reference(self, x: np.ndarray) -> np.ndarray:
        return self._shaped(self.total(x.astype(np.float64), self.reduced(x.ndim)), x)

    def bound(self, x: np.ndarray) -> np.ndarray:
        axes = self.reduced(x.ndim)
        count = math.prod(x.shape[axis] for axis in axes)
        shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
        return self._shaped(np.broadcast_to(self.total_bound(x.astype(np.float64), axes, count), shape), x)

    def _shaped(self, total: np.ndarray, x: np.ndarray) -> np.ndarray:
        return (
            total
            if self.keepdims
            else total.reshape(
                tuple(extent for axis, extent in enumerate(x.shape) if axis not in self.reduced(x.ndim))
            )
        )


class _Sum(_Reduce):
    """What adds up: float32 is off by 4*sqrt(K) roundings of the sum of sizes, as everywhere."""

    def terms(self, x: np.ndarray) -> np.ndarray:
        return x

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return self.terms(x).sum(axis=axes, keepdims=True)

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        return 4 * math.sqrt(count) * UNIT_ROUNDOFF * np.abs(self.terms(x)).sum(axis=axes, keepdims=True)


@operator("ReduceSum", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceSum(_Sum):
    KIND = "sum"


@operator("ReduceMean", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceMean(_Sum):
    KIND, FINISH = "sum", "divide"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.mean(axis=axes, keepdims=True)

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        return super().total_bound(x, axes, count) / count


@operator("ReduceL1", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceL1(_Sum):
    KIND = "sizes"

    def terms(self, x: np.ndarray) -> np.ndarray:
        return np.abs(x)


@operator("ReduceSumSquare", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceSumSquare(_Sum):
    KIND = "squares"

    def terms(self, x: np.ndarray) -> np.ndarray:
        return x * x


@operator("ReduceL2", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceL2(_Sum):
    KIND, FINISH = "squares", "root"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.sqrt((x * x).sum(axis=axes, keepdims=True))

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        """A root halves what is relative and rounds."""
        return (2 * math.sqrt(count) + 2) * UNIT_ROUNDOFF * self.total(x, axes)


@operator("ReduceLogSum", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceLogSum(_Sum):
    KIND, FINISH = "sum", "logarithm"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.log(x.sum(axis=axes, keepdims=True))

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        """What is relative in the sum is absolute in the logarithm, which rounds by 2 units too."""
        sizes = np.abs(x).sum(axis=axes, keepdims=True) / np.abs(x.sum(axis=axes, keepdims=True))
        return UNIT_ROUNDOFF * (4 * math.sqrt(count) * sizes + 4 * np.abs(self.total(x, axes)))


@operator("ReduceLogSumExp", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceLogSumExp(_Reduce):
    """Not in pieces: their exponentials would have shifts of their own."""

    KIND = "exponentials"

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        largest = x.max(axis=axes, keepdims=True)
        return np.log(np.exp(x - largest).sum(axis=axes, keepdims=True)) + largest

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        """x - m rounds by |x - m| u, which is exp's relative error, beside its own 2; then as any sum."""
        below = x.max(axis=axes, keepdims=True) - x
        shares = np.exp(-below)
        total = shares.sum(axis=axes, keepdims=True)
        of_sum = (shares / total * (below + 4)).sum(axis=axes, keepdims=True) + 4 * math.sqrt(count)
        return UNIT_ROUNDOFF * (of_sum + 4 * np.log(total) + 2 * np.abs(self.total(x, axes)))


@operator("ReduceMax", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceMax(_Reduce):
    KIND = "maximum"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.max(axis=axes, keepdims=True)


@operator("ReduceMin", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceMin(_Reduce):
    KIND = "minimum"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.min(axis=axes, keepdims=True)


@operator("ReduceProd", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class ReduceProd(_Reduce):
    KIND = "product"

    def total(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.prod(axis=axes, keepdims=True)

    def total_bound(self, x: np.ndarray, axes: tuple[int, ...], count: int) -> np.ndarray:
        """Relative roundings add up; numbers below the normal ones lose more."""
        return 4 * math.sqrt(count) * UNIT_ROUNDOFF * np.abs(self.total(x, axes)) + 2.0**-126


_IMAGE = (2, 5, 9, 7)

CASES = {
    "sum, a pixel for the image": Case(operator=ReduceSum(axes=(2, 3)), shapes=(_IMAGE,)),
    "sum, axes dropped": Case(operator=ReduceSum(axes=(-1, -2), keepdims=0), shapes=((2, 21, 3, 7),)),
    "sum, one long row": Case(operator=ReduceSum(axes=(1,)), shapes=((2, 5000),), ranges={0: (0.5, 1.0)}),
    "sum, everything": Case(operator=ReduceSum(keepdims=0), shapes=((3, 5, 17, 19),)),
    "sum, a prime number of rows": Case(operator=ReduceSum(axes=(2, 3)), shapes=((1, 5, 67, 31),)),
    "mean, a pixel for the image": Case(operator=ReduceMean(axes=(2, 3)), shapes=(_IMAGE,)),
    "mean, the same, axes dropped": Case(
        operator=ReduceMean(axes=(-1, -2), keepdims=0), shapes=((2, 21, 3, 7),)
    ),
    "mean, channels": Case(operator=ReduceMean(axes=(1,)), shapes=((2, 5, 3, 7),)),
    "mean, channels, dropped": Case(operator=ReduceMean(axes=(1,), keepdims=0), shapes=((2, 5, 3, 7),)),
    "mean, many channels": Case(operator=ReduceMean(axes=(1,)), shapes=((2, 67, 3, 5),)),
    "mean, every other axis": Case(operator=ReduceMean(axes=(0, 2)), shapes=((2, 5, 3, 7),)),
    "mean, all but rows: three loops in NHWC": Case(
        operator=ReduceMean(axes=(0, 1, 3)), shapes=((2, 5, 3, 7),)
    ),
    "mean, all but rows, in pieces": Case(operator=ReduceMean(axes=(0, 1, 3)), shapes=((9, 18, 3, 11),)),
    "mean, all": Case(operator=ReduceMean(keepdims=0), shapes=((2, 5, 3, 7),)),
    "mean, none": Case(operator=ReduceMean(noop_with_empty_axes=1), shapes=((2, 5, 3, 7),)),
    "mean, many terms": Case(operator=ReduceMean(axes=(1,)), shapes=((2, 5000),), ranges={0: (0.5, 1.0)}),
    "mean, rank 5": Case(operator=ReduceMean(axes=(0, 2, 4)), shapes=((2, 3, 2, 3, 4),)),
    "mean, rank 6": Case(operator=ReduceMean(axes=(0, 2, 4)), shapes=((2, 3, 2, 3, 2, 3),)),
    "sum, four kept and three reduced axes that don't merge": Case(
        operator=ReduceSum(axes=(1, 3, 5)), shapes=((2, 3, 3, 2, 2, 4, 5),)
    ),
    "sum, more rows than a block": Case(operator=ReduceSum(axes=(1,)), shapes=((300, 3, 7),)),
    "mean, rank 1": Case(operator=ReduceMean(axes=(0,)), shapes=((7,),)),
    "mean of a large image": Case(operator=ReduceMean(axes=(2, 3)), shapes=((1, 19, 35, 37),)),
    "largest": Case(operator=ReduceMax(axes=(1, 3)), shapes=(_IMAGE,)),
    "largest, in pieces": Case(
        operator=ReduceMax(axes=(2, 3)), shapes=((1, 3, 41, 40),), ranges={0: (-3.0, -1.0)}
    ),
    "least": Case(operator=ReduceMin(axes=(1,), keepdims=0), shapes=(_IMAGE,)),
    "least, in pieces": Case(operator=ReduceMin(), shapes=((2, 900),), ranges={0: (1.0, 3.0)}),
    "product": Case(operator=ReduceProd(axes=(3,)), shapes=(_IMAGE,)),
    "product, in pieces": Case(operator=ReduceProd(axes=(1,)), shapes=((2, 1200),), ranges={0: (0.9, 1.1)}),
    "L1": Case(operator=ReduceL1(axes=(2, 3)), shapes=(_IMAGE,)),
    "L1, a long row": Case(operator=ReduceL1(axes=(0,)), shapes=((1500,),)),
    "L2": Case(operator=ReduceL2(axes=(1,)), shapes=(_IMAGE,)),
    "L2, in pieces": Case(operator=ReduceL2(keepdims=0), shapes=((3, 20, 5, 7),)),
    "squares": Case(operator=ReduceSumSquare(axes=(0, 3)), shapes=(_IMAGE,)),
    "squares, in pieces": Case(operator=ReduceSumSquare(axes=(2, 3)), shapes=((2, 18, 33, 32),)),
    "logarithm of the sum": Case(operator=ReduceLogSum(axes=(2,)), shapes=(_IMAGE,), ranges={0: (0.1, 2.0)}),
    "logarithm of a long sum": Case(operator=ReduceLogSum(), shapes=((2, 5, 200),), ranges={0: (0.1, 2.0)}),
    "logarithm of exponentials": Case(operator=ReduceLogSumExp(axes=(1, 2)), shapes=(_IMAGE,)),
    "logarithm of exponentials, four kept and three reduced axes": Case(
        operator=ReduceLogSumExp(axes=(1, 3, 5)), shapes=((2, 3, 3, 2, 2, 4, 5),)
    ),
    "logarithm of exponentials that would overflow": Case(
        operator=ReduceLogSumExp(axes=(1,)), shapes=((3, 50),), ranges={0: (-200.0, 200.0)}
    ),
}
