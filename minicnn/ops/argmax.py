"""ArgMax, ArgMin: where along an axis the greatest or least number is.

Shapes    x float32 -> y int64 without the axis, or (keepdims) with extent 1 there
Source    ONNX operators ArgMax, ArgMin; a NaN, the first of them, is what numpy takes for both
Not here  other types
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import ceil_div
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import grid_and_block, walks
from minicnn.tiling import VECTOR

LARGEST_WHOLE = 1 << 24  # up to which float32 counts


class Direct(Variant):
    """A thread an element of y or, where neighbours in x are neighbours in y, a vector of them."""

    name = "direct"
    dtypes = ("float32", "int64")

    def applies(self, problem: Problem) -> str:
        return "" if problem.x.dtype == "float32" else f"x is {problem.x.dtype}, not float32"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y, operator = problem.x, problem.y, problem.operator
        axis = operator.axis % len(x.shape)
        kept = [a for a in range(len(x.shape)) if a != axis]
        y_strides = tuple(y.strides[a] for a in kept) if len(y.shape) == len(x.shape) else y.strides
        launches: list[Launch] = []
        for walk in walks(tuple(x.shape[a] for a in kept), tuple(x.strides[a] for a in kept), y_strides):
            shared: dict[str, Any] = walk.arguments("x", "y") | {
                "x": x.view(walk.starts[0]),
                "y": y.view(walk.starts[1]),
                "R": x.shape[axis],
                "r0": x.strides[axis],
                "least": int(operator.IS_LEAST),
                "last": operator.select_last_index,
            }
            columns, rows, *planes = walk.extents
            if shared["x0"] == shared["y0"] == 1 < columns and x.shape[axis] <= LARGEST_WHOLE:
                del shared["x0"], shared["y0"]
                geometry = grid_and_block(ceil_div(columns, VECTOR), rows, math.prod(planes))
                launches += launch(Kernel(file="reduce.cu", entry="argreduce_vectors"), **geometry, **shared)
            else:
                launches += launch(Kernel(file="reduce.cu", entry="argreduce"), **walk.geometry(), **shared)
        return tuple(launches)


@dataclass(frozen=True, kw_only=True)
class _Place:
    IS_LEAST: ClassVar[bool]

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        rank = len(x.extents)
        if self.keepdims not in (0, 1):
            raise ShapeError("keepdims is a switch", found=self.keepdims, accepted="0 or 1")
        if not -rank <= self.axis < rank or x.extents[self.axis] == 0:
            raise ShapeError(
                "the axis isn't the input's, or empty",
                found=f"axis {self.axis} of {x}",
                accepted=f"{-rank} to {rank - 1}",
            )
        axis = self.axis % rank
        one = (1,) if self.keepdims else ()
        return (TensorType(dtype="int64", shape=(*x.extents[:axis], *one, *x.extents[axis + 1 :])),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.x.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        find = np.argmin if self.IS_LEAST else np.argmax
        place = find(x, axis=self.axis)
        if self.select_last_index:
            from_behind = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), axis=self.axis)
            place = np.where(np.isnan(x).any(axis=self.axis), place, from_behind)
        return np.expand_dims(place, self.axis) if self.keepdims else place

    def bound(self, x: np.ndarray) -> float:
        return 0.0


@operator("ArgMax", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class ArgMax(_Place):
    IS_LEAST = False


@operator("ArgMin", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class ArgMin(_Place):
    IS_LEAST = True


_IMAGE = (2, 19, 5, 7)

CASES = {
    "a class": Case(operator=ArgMax(axis=1), shapes=((3, 1000),)),
    "a class for every pixel": Case(operator=ArgMax(axis=1, keepdims=0), shapes=(_IMAGE,)),
    "axis 0 by default": Case(operator=ArgMax(), shapes=((4, 5),)),
    "counted from the end": Case(operator=ArgMax(axis=-1), shapes=(_IMAGE,)),
    "the first of equals": Case(operator=ArgMax(axis=1), shapes=((4, 30),), ranges={0: (0.5, 0.5)}),
    "the last of equals": Case(
        operator=ArgMax(axis=1, select_last_index=1), shapes=((4, 30),), ranges={0: (0.5, 0.5)}
    ),
    "the last, along rows": Case(operator=ArgMax(axis=2, select_last_index=1), shapes=(_IMAGE,)),
    "one element": Case(operator=ArgMax(axis=0), shapes=((1,),)),
    "four axes that don't merge": Case(operator=ArgMax(axis=3), shapes=((2, 3, 4, 5, 2),)),
    "more rows than a block": Case(operator=ArgMax(axis=1, keepdims=0), shapes=((300, 3, 7),)),
    "rank 5": Case(operator=ArgMax(axis=2), shapes=((2, 3, 4, 2, 3),)),
    "least": Case(operator=ArgMin(axis=1), shapes=(_IMAGE,)),
    "least, the last of equals": Case(
        operator=ArgMin(axis=1, keepdims=0, select_last_index=1), shapes=((4, 30),), ranges={0: (0.5, 0.5)}
    ),
}
