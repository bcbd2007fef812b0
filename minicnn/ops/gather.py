"""Gather: slices of a tensor along an axis, as indices say.

Shapes    x (outer, A, inner), indices -> y (outer, extents of the indices, inner); indices int32 or int64
Source    ONNX operator Gather. An index beyond the axis is an error there; here it is taken for the axis' end
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError
from minicnn.geometry import row_major
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import move_steps, walks


class Lookup(Variant):
    """Indices known or not."""

    name = "lookup"
    dtypes = tuple(elements.CODES)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NCHW",), outputs=("NCHW",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y, index = problem.x, problem.y, problem.inputs[1]
        assert index is not None
        axis = problem.operator.axis % len(x.shape)
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        extents = (outer, math.prod(index.shape), inner)
        of_x, of_index = (x.shape[axis] * inner, 0, 1), (0, 1, 0)
        kernel = Kernel(file="gather.cu", entry="gather", defines=elements.defines(x.dtype))
        words = index.itemsize // 4
        launches: list[Launch] = []
        for walk in walks(extents, of_x, of_index, row_major(extents)):
            x_start, index_start, y_start = walk.starts
            launches += launch(
                kernel, **walk.geometry(),
                x=x.view(x_start), index=index.view(index_start), y=y.view(y_start),
                A=x.shape[axis], x_axis=inner, index_words=words, **walk.arguments("x", "n", "y"),
            )  # fmt: skip
        return tuple(launches)


class Copy(Variant):
    """Indices known, at equal distances: a strided copy."""

    name = "copy"
    dtypes = None

    def applies(self, problem: Problem) -> str:
        index = problem.inputs[1]
        if index is None or index.value is None:
            return "the indices aren't known"
        places = problem.operator.places(index.value, problem.x.shape).reshape(-1)
        return "" if len(set(np.diff(places).tolist())) <= 1 else "indices at unequal distances"

    def orders(self, problem: Problem) -> Orders:
        index = problem.inputs[1]
        assert index is not None
        return Orders(inputs=("any",), outputs=("any",) if len(index.shape) <= 1 else ("NCHW",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y, index = problem.x, problem.y, problem.inputs[1]
        assert index is not None and index.value is not None
        axis = problem.operator.axis % len(x.shape)
        places = problem.operator.places(index.value, x.shape).reshape(-1)
        if not places.size:
            return ()
        step = int(places[1] - places[0]) * x.strides[axis] if places.size > 1 else 0
        # y's axes of the indices as one: more than one only in row-major memory
        of_index = y.strides[axis : axis + len(index.shape)][-1:] or (0,)
        extents = (*x.shape[:axis], places.size, *x.shape[axis + 1 :])
        x_strides = (*x.strides[:axis], step, *x.strides[axis + 1 :])
        y_strides = (*y.strides[:axis], *of_index, *y.strides[axis + len(index.shape) :])
        return move_steps(extents, x, x_strides, y, y_strides, x_first=int(places[0]) * x.strides[axis])


@operator("Gather", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Gather:
    axis: int = 0

    def places(self, indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The indices counted from the front."""
        extent = shape[self.axis]
        return np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1)

    def infer(self, x: TensorType, indices: TensorType) -> tuple[TensorType, ...]:
        rank = len(x.extents)
        if not -rank <= self.axis < rank:
            accepted = f"{-rank} to {rank - 1}"
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=accepted)
        if indices.dtype not in elements.INTEGERS:
            raise ShapeError("indices that aren't integers", found=indices, accepted="int32, int64")
        axis = self.axis % rank
        if not x.extents[axis] and 0 not in indices.extents:
            raise ShapeError("indices into an axis of no elements", expected="none", found=indices.extents)
        return (replace(x, shape=(*x.extents[:axis], *indices.extents, *x.extents[axis + 1 :])),)

    def variants(self) -> tuple[Variant, ...]:
        return (Lookup(), Copy())

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.take(x, self.places(indices, x.shape), axis=self.axis)

    def bound(self, x: np.ndarray, indices: np.ndarray) -> float:
        return 0.0


def _case(
    axis: int, shape: tuple[int, ...], of_index: tuple[int, ...], *, index: str = "int64",
    is_constant: bool = False, dtype: str = "float32", low: int | None = None, high: int | None = None,
) -> Case:  # fmt: skip
    extent = shape[axis]
    span = (-extent if low is None else low, extent - 1 if high is None else high)
    return Case(
        operator=Gather(axis=axis), shapes=(shape, of_index), dtype=dtype, dtypes={1: index},
        ranges={1: span}, constants=(1,) if is_constant else (),
    )  # fmt: skip


_IMAGE = (2, 5, 3, 7)

CASES = {
    "rows of a table": _case(0, (33, 20), (7,)),
    "rows of a table, indices of rank 2": _case(0, (33, 20), (2, 3)),
    "columns": _case(-1, (5, 9), (4,)),
    "channels": _case(1, _IMAGE, (3,)),
    "channels, 4-byte indices": _case(1, _IMAGE, (3,), index="int32"),
    "channels, constant indices": _case(1, _IMAGE, (9,), is_constant=True),
    "one channel": _case(1, (2, 19, 3, 7), (), is_constant=True),
    "one channel, its axis kept": _case(1, (2, 19, 3, 7), (1,), is_constant=True),
    "one row": _case(2, _IMAGE, (), is_constant=True),
    "the last one, counted from the end": _case(0, (5, 9), (), is_constant=True, low=-1, high=-1),
    "the same one again and again": _case(1, _IMAGE, (4,), is_constant=True, low=2, high=2),
    "the same one, indices of rank 2": _case(1, _IMAGE, (2, 3), is_constant=True, low=2, high=2),
    "an index known at run time": _case(1, _IMAGE, ()),
    "from a vector": _case(0, (9,), (2, 2)),
    "no index": _case(0, (5, 3), (0,)),
    "8-byte integers": _case(1, (5, 9), (4,), dtype="int64"),
    "bools": _case(1, (5, 9), (4,), dtype="bool"),
    "float16": _case(1, (5, 9), (4,), dtype="float16"),
}
