"""Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout: the same elements in another shape, without work.

Shapes    x -> y with as many elements in the same row-major order; any rank, any type
Source    ONNX operators of these names
Not here  Dropout while training; its mask
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator


class View(Variant):
    """y is x's memory."""

    name = "view"
    dtypes = None
    is_view = True

    def orders(self, problem: Problem) -> Orders:
        """Row-major memory fits every shape. Where images and channels stay as they are, so do pixels, and
        any order fits: (N, C, 1, 1) and (N, C) differ in nothing but their names."""
        x, y = problem.x.shape, problem.y.shape
        if x == y or (len(x) >= 2 and len(y) >= 2 and x[:2] == y[:2]):
            return Orders(inputs=("any",), outputs=("same",))
        return Orders(inputs=("NCHW",), outputs=("NCHW",))


class _Reshaping:
    """What all of these share; each says which shape comes out."""

    def shape_of(self, shape: Shape) -> Shape:
        return shape

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        shape = self.shape_of(x.extents)
        if math.prod(shape) != math.prod(x.extents):
            raise ShapeError("another number of elements", expected=x, found=shape)
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (View(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.shape_of(x.shape))

    def bound(self, x: np.ndarray) -> float:
        return 0.0


@operator("Reshape", opsets=(5, None), parameters={1: "shape"})
@dataclass(frozen=True, kw_only=True)
class Reshape(_Reshaping):
    """In `shape`, 0 keeps an extent of x (unless `allowzero`) and one -1 takes what is left."""

    shape: tuple[int, ...]
    allowzero: int = 0

    def shape_of(self, shape: Shape) -> Shape:
        wanted = list(self.shape)
        for axis, extent in enumerate(wanted):
            if extent == 0 and not self.allowzero:
                if axis >= len(shape):
                    raise ShapeError("a 0 where the input has no axis", found=self.shape, expected=shape)
                wanted[axis] = shape[axis]
        if wanted.count(-1) > 1 or any(extent < -1 for extent in wanted):
            raise ShapeError("a shape with more than one open extent or a negative one", found=self.shape)
        if -1 in wanted:
            known = math.prod(extent for extent in wanted if extent != -1)
            if known == 0 or math.prod(shape) % known:
                raise ShapeError("no whole number is left for -1", expected=shape, found=self.shape)
            wanted[wanted.index(-1)] = math.prod(shape) // known
        return tuple(wanted)


@operator("Flatten", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Flatten(_Reshaping):
    axis: int = 1

    def shape_of(self, shape: Shape) -> Shape:
        if not -len(shape) <= self.axis <= len(shape):
            accepted = f"{-len(shape)} to {len(shape)}"
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=accepted)
        axis = self.axis + len(shape) if self.axis < 0 else self.axis
        return (math.prod(shape[:axis]), math.prod(shape[axis:]))


def axes_of(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Axes counted from the front.

    Raises    ShapeError: one that isn't there, or is named twice
    """
    wrong = [axis for axis in axes if not (isinstance(axis, int) and -rank <= axis < rank)]
    found = tuple(axis % rank for axis in axes) if not wrong else ()
    if wrong or len(set(found)) != len(found):
        accepted = f"{-rank} to {rank - 1}, each once"
        raise ShapeError("axes that aren't there or are named twice", found=axes, accepted=accepted)
    return found


@operator("Squeeze", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class Squeeze(_Reshaping):
    """Drops axes of extent 1: those named, or all."""

    axes: tuple[int, ...] | None = None

    def shape_of(self, shape: Shape) -> Shape:
        if self.axes is None:
            return tuple(extent for extent in shape if extent != 1)
        axes = axes_of(self.axes, len(shape))
        if any(shape[axis] != 1 for axis in axes):
            raise ShapeError("an axis longer than 1", found=shape, expected=f"1 along {axes}")
        return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


@operator("Unsqueeze", opsets=(1, None), parameters={1: "axes"})
@dataclass(frozen=True, kw_only=True)
class Unsqueeze(_Reshaping):
    """Puts in axes of extent 1; they are counted in y."""

    axes: tuple[int, ...]

    def shape_of(self, shape: Shape) -> Shape:
        rank = len(shape) + len(self.axes)
        axes = axes_of(self.axes, rank)
        kept = iter(shape)
        return tuple(1 if axis in axes else next(kept) for axis in range(rank))


@operator("Identity", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Identity(_Reshaping):
    pass


class DropoutView(View):
    def applies(self, problem: Problem) -> str:
        return "the mask isn't computed" if len(problem.outputs) > 1 else ""


@operator("Dropout", opsets=(7, None), parameters={1: "ratio", 2: "training_mode"})
@dataclass(frozen=True, kw_only=True)
class Dropout(_Reshaping):
    """At inference nothing is dropped."""

    ratio: float = 0.5
    training_mode: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.training_mode:
            raise ValueError("training_mode is true")

    def variants(self) -> tuple[Variant, ...]:
        return (DropoutView(),)


_IMAGE = (2, 5, 3, 7)

CASES = {
    "reshape, an open extent": Case(operator=Reshape(shape=(2, -1)), shapes=(_IMAGE,)),
    "reshape, extents kept": Case(operator=Reshape(shape=(0, 0, 21)), shapes=(_IMAGE,)),
    "reshape, channels in groups": Case(operator=Reshape(shape=(2, 3, 4, 5, 5)), shapes=((2, 12, 5, 5),)),
    "reshape, 8-byte integers": Case(operator=Reshape(shape=(6,)), shapes=((2, 3),), dtype="int64"),
    "flatten": Case(operator=Flatten(), shapes=(_IMAGE,)),
    "flatten, axis 0": Case(operator=Flatten(axis=0), shapes=(_IMAGE,)),
    "flatten, counted from the end": Case(operator=Flatten(axis=-1), shapes=(_IMAGE,)),
    "flatten, behind the last axis": Case(operator=Flatten(axis=4), shapes=(_IMAGE,)),
    "squeeze, all": Case(operator=Squeeze(), shapes=((1, 5, 1, 3),)),
    "squeeze, one pixel": Case(operator=Squeeze(axes=(2, 3)), shapes=((2, 5, 1, 1),)),
    "squeeze, counted from the end": Case(operator=Squeeze(axes=(-1,)), shapes=((2, 5, 1),)),
    "unsqueeze, to one pixel": Case(operator=Unsqueeze(axes=(2, 3)), shapes=((2, 5),)),
    "unsqueeze, both ends": Case(operator=Unsqueeze(axes=(0, -1)), shapes=((2, 5),)),
    "identity": Case(operator=Identity(), shapes=(_IMAGE,)),
    "dropout": Case(operator=Dropout(ratio=0.3), shapes=(_IMAGE,)),
}
