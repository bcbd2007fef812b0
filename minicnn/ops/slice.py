"""Slice, Split, Expand, Tile: elements of one tensor in another, moved by strides and never computed.

Shapes    x -> y (Split: several), any rank, any type
Source    ONNX operators of these names, attributes of older opsets included
Not here  slices whose limits are computed at run time; the split of channels that is a view: the layout of an
          output could name its part of x, as those of a Concat's inputs do, were such views made from inputs
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape, broadcast_shape, broadcast_strides, ceil_div
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Launch
from minicnn.strided import move_steps


class Copy(Variant):
    """A strided copy an output."""

    name = "copy"
    dtypes = None

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        return problem.operator.moves(problem)


class _Moving:
    """What all share: nothing is computed."""

    def variants(self) -> tuple[Variant, ...]:
        return (Copy(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """`count` places along an axis, `step` apart, from `first` on."""

    first: int
    count: int
    step: int


@operator("Slice", opsets=(1, None), parameters={1: "starts", 2: "ends", 3: "axes", 4: "steps"})
@dataclass(frozen=True, kw_only=True)
class Slice(_Moving):
    """From `starts` up to but without `ends`, along `axes` (None: the first ones)."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None

    def ranges(self, shape: Shape) -> tuple[Range, ...]:
        """Raises    ShapeError"""
        rank = len(shape)
        axes = tuple(range(len(self.starts))) if self.axes is None else self.axes
        steps = (1,) * len(self.starts) if self.steps is None else self.steps
        if not len(self.starts) == len(self.ends) == len(axes) == len(steps):
            given = f"starts {self.starts}, ends {self.ends}, axes {axes}, steps {steps}"
            raise ShapeError("starts, ends, axes and steps that differ in number", found=given)
        is_there = all(-rank <= axis < rank for axis in axes)
        if not is_there or len({axis % rank for axis in axes}) < len(axes):
            accepted = f"{-rank} to {rank - 1}, each once"
            raise ShapeError("axes that aren't there or are named twice", found=axes, accepted=accepted)
        if 0 in steps:
            raise ShapeError("a step of 0", found=steps)
        ranges = [Range(first=0, count=extent, step=1) for extent in shape]
        for axis, start, end, step in zip(axes, self.starts, self.ends, steps, strict=True):
            places = range(*slice(start, end, step).indices(shape[axis]))
            ranges[axis] = Range(first=places.start if places else 0, count=len(places), step=step)
        return tuple(ranges)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (replace(x, shape=tuple(r.count for r in self.ranges(x.extents))),)

    def moves(self, problem: Problem) -> tuple[Launch, ...]:
        x, y = problem.x, problem.y
        ranges = self.ranges(x.shape)
        strides = tuple(r.step * stride for r, stride in zip(ranges, x.strides, strict=True))
        first = sum(r.first * stride for r, stride in zip(ranges, x.strides, strict=True))
        return move_steps(y.shape, x, strides, y, y.strides, x_first=first)

    def reference(self, x: np.ndarray) -> np.ndarray:
        places = [[r.first + i * r.step for i in range(r.count)] for r in self.ranges(x.shape)]
        return x[np.ix_(*places)] if places else x


@operator("Split", opsets=(2, None), parameters={1: "split"})
@dataclass(frozen=True, kw_only=True)
class Split(_Moving):
    """Parts of the lengths `split` along `axis`; without it equal ones, but perhaps for a shorter last."""

    outputs: int
    axis: int = 0
    split: tuple[int, ...] | None = None
    num_outputs: int | None = None

    def lengths(self, shape: Shape) -> tuple[int, ...]:
        """Raises    ShapeError"""
        rank = len(shape)
        if not -rank <= self.axis < rank:
            accepted = f"{-rank} to {rank - 1}"
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=accepted)
        extent = shape[self.axis]
        if self.split is not None:
            lengths = self.split
        elif self.num_outputs is None and extent % self.outputs:
            parts = f"{self.outputs} parts"
            raise ShapeError("an axis that can't be split evenly", found=extent, expected=parts)
        else:
            part = ceil_div(extent, self.num_outputs or self.outputs)
            lengths = (part,) * (self.outputs - 1) + (extent - part * (self.outputs - 1),)
        if len(lengths) != self.outputs or sum(lengths) != extent or min(lengths) < 0:
            found = f"{lengths} for {self.outputs} outputs"
            raise ShapeError("parts that don't make up the axis", found=found, expected=extent)
        return lengths

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        shape = x.extents
        lengths = self.lengths(shape)
        axis = self.axis % len(shape)
        return tuple(replace(x, shape=(*shape[:axis], n, *shape[axis + 1 :])) for n in lengths)

    def moves(self, problem: Problem) -> tuple[Launch, ...]:
        x = problem.x
        launches: list[Launch] = []
        first = 0
        for y in problem.outputs:
            launches += move_steps(y.shape, x, x.strides, y, y.strides, x_first=first * x.strides[self.axis])
            first += y.shape[self.axis]
        return tuple(launches)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.split(x, np.cumsum(self.lengths(x.shape))[:-1], axis=self.axis))


@operator("Expand", opsets=(8, None), parameters={1: "shape"})
@dataclass(frozen=True, kw_only=True)
class Expand(_Moving):
    """Stretched to what x's shape and `shape` broadcast to."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        shape = broadcast_shape(x.extents, self.shape)
        if shape is None or min(self.shape, default=0) < 0:
            raise ShapeError("the two shapes don't broadcast", found=f"{x} and {self.shape}")
        return (replace(x, shape=shape),)

    def moves(self, problem: Problem) -> tuple[Launch, ...]:
        x, y = problem.x, problem.y
        return move_steps(y.shape, x, broadcast_strides(x.shape, x.strides, len(y.shape)), y, y.strides)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, self.shape))


@operator("Tile", opsets=(6, None), parameters={1: "repeats"})
@dataclass(frozen=True, kw_only=True)
class Tile(_Moving):
    """x again and again: `repeats` times along every axis."""

    repeats: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(self.repeats) != len(x.extents) or min(self.repeats, default=0) < 0:
            raise ShapeError("one number of repeats an axis", expected=x, found=self.repeats)
        return (replace(x, shape=tuple(e * r for e, r in zip(x.extents, self.repeats, strict=True))),)

    def moves(self, problem: Problem) -> tuple[Launch, ...]:
        """Every axis of y as two: the repeats, along which x stands still, and x's own."""
        x, y = problem.x, problem.y
        axes = list(zip(self.repeats, x.shape, x.strides, y.strides, strict=True))
        extents = tuple(e for repeats, extent, _, _ in axes for e in (repeats, extent))
        x_strides = tuple(s for _, _, stride, _ in axes for s in (0, stride))
        y_strides = tuple(s for _, extent, _, stride in axes for s in (extent * stride, stride))
        return move_steps(extents, x, x_strides, y, y_strides)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.tile(x, self.repeats)


_IMAGE = (2, 5, 3, 7)
_LAST = 2**63 - 1


def _slice(shape: tuple[int, ...], *, dtype: str = "float32", **fields: tuple[int, ...]) -> Case:
    return Case(operator=Slice(**fields), shapes=(shape,), dtype=dtype)


def _split(shape: tuple[int, ...], *, dtype: str = "float32", **fields: object) -> Case:
    return Case(operator=Split(**fields), shapes=(shape,), dtype=dtype)  # type: ignore[arg-type]


CASES = {
    "slice, channels": _slice((2, 37, 3, 7), starts=(3,), ends=(20,), axes=(1,)),
    "slice, channels that fill their padding": _slice((2, 48, 3, 7), starts=(16,), ends=(32,), axes=(1,)),
    "slice, rows and columns": _slice(_IMAGE, starts=(1, 0), ends=(3, -1), axes=(2, 3)),
    "slice, every other column": _slice(_IMAGE, starts=(0,), ends=(_LAST,), axes=(3,), steps=(2,)),
    "slice, backwards": _slice(_IMAGE, starts=(-1,), ends=(-_LAST,), axes=(-1,), steps=(-1,)),
    "slice, channels backwards": _slice((2, 19, 3, 7), starts=(17,), ends=(2,), axes=(1,), steps=(-3,)),
    "slice, all axes backwards": _slice(
        (3, 4, 5), starts=(2, 3, 4), ends=(-9, -9, -9), axes=(0, 1, 2), steps=(-1, -1, -1)
    ),
    "slice, beyond the ends": _slice(_IMAGE, starts=(-99, 1), ends=(99, 99), axes=(2, 1)),
    "slice, the first axes by default": _slice(_IMAGE, starts=(1, 2), ends=(2, 4)),
    "slice, nothing": _slice((5, 9), starts=(3,), ends=(3,), axes=(1,)),
    "slice, rank 1": _slice((9,), starts=(1,), ends=(8,), axes=(0,), steps=(3,)),
    "slice, six axes": _slice((2, 3, 2, 3, 2, 3), starts=(1, 1), ends=(3, 3), axes=(1, 5)),
    "slice, 8-byte integers": _slice((5, 9), starts=(7,), ends=(1,), axes=(1,), steps=(-2,), dtype="int64"),
    "slice, bools": _slice((5, 9), starts=(1,), ends=(8,), axes=(1,), dtype="bool"),
    "slice, float16": _slice(_IMAGE, starts=(1,), ends=(4,), axes=(1,), dtype="float16"),
    "split, channels in halves": _split((2, 32, 3, 7), outputs=2, axis=1),
    "split, channels, odd parts": _split((2, 24, 3, 7), outputs=3, axis=1, split=(5, 18, 1)),
    "split, rows": _split((2, 5, 6, 7), outputs=3, axis=2),
    "split, counted from the end": _split(_IMAGE, outputs=2, axis=-1, split=(3, 4)),
    "split, batches": _split((3, 5, 3, 7), outputs=3),
    "split, a shorter last part": _split((7, 5), outputs=3, num_outputs=3),
    "split, an empty part": _split((2, 5), outputs=2, axis=1, split=(5, 0)),
    "split, one part": _split((2, 5), outputs=1, axis=1, split=(5,)),
    "split, 8-byte integers": _split((6,), outputs=2, split=(2, 4), dtype="int64"),
    "split, float16": _split((2, 12, 3, 3), outputs=2, axis=1, split=(4, 8), dtype="float16"),
    "expand, an excitation": Case(operator=Expand(shape=(2, 5, 3, 7)), shapes=((2, 5, 1, 1),)),
    "expand, a row": Case(operator=Expand(shape=(2, 5, 3, 7)), shapes=((7,),)),
    "expand, both ways": Case(operator=Expand(shape=(1, 7)), shapes=((5, 1),)),
    "expand, a scalar": Case(operator=Expand(shape=(3, 4)), shapes=((),)),
    "expand, nothing changes": Case(operator=Expand(shape=(1,)), shapes=(_IMAGE,)),
    "expand, bools": Case(operator=Expand(shape=(3, 4, 5)), shapes=((4, 1),), dtype="bool"),
    "expand, 8-byte integers": Case(operator=Expand(shape=(3, 4)), shapes=((4,),), dtype="int64"),
    "tile, rows and columns": Case(operator=Tile(repeats=(1, 1, 2, 3)), shapes=(_IMAGE,)),
    "tile, channels": Case(operator=Tile(repeats=(1, 3, 1, 1)), shapes=(_IMAGE,)),
    "tile, all axes": Case(operator=Tile(repeats=(2, 3, 2)), shapes=((2, 3, 4),)),
    "tile, once": Case(operator=Tile(repeats=(1, 1)), shapes=((2, 3),)),
    "tile, never": Case(operator=Tile(repeats=(1, 0)), shapes=((2, 3),)),
    "tile, 8-byte integers": Case(operator=Tile(repeats=(3,)), shapes=((5,),), dtype="int64"),
}
