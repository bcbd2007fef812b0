"""Reductions as launches: which axes of a tensor become one number, walked as they lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from minicnn.geometry import Shape, ceil_div, merge_axes, row_major
from minicnn.kernels import launch
from minicnn.step import Kernel, Launch, Operand
from minicnn.strided import grid_and_block, walks
from minicnn.tiling import VECTOR

FILE = "reduce.cu"
LOOPS = 3  # reduced axes of the kernel
KINDS = {"sum": 0, "sizes": 1, "squares": 2, "maximum": 3, "minimum": 4, "product": 5, "exponentials": 6}
FINISHES = {"none": 0, "divide": 1, "root": 2, "logarithm": 3}  # both as in cuda/reduce.cu
_JOINED = {"sizes": "sum", "squares": "sum"}  # how totals of parts are put together; others by their own kind


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """count: what "divide" divides by"""

    kind: str
    finish: str = "none"
    count: int = 1

    def scalars(self) -> dict[str, Any]:
        return {"kind": KINDS[self.kind], "finish": FINISHES[self.finish], "count": float(self.count)}


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Loops of a reduction: kept axes, their strides in x and y, reduced ones (merged, outermost first)."""

    kept: Shape
    x_kept: tuple[int, ...]
    y_kept: tuple[int, ...]
    reduced: Shape
    x_reduced: tuple[int, ...]


def axes_of(x: Operand, y: Operand, reduced: tuple[int, ...]) -> Axes:
    """y has the reduced axes with extent 1, or not at all."""
    order = sorted(reduced, key=lambda axis: x.strides[axis], reverse=True)
    extents, (strides,) = merge_axes(tuple(x.shape[a] for a in order), tuple(x.strides[a] for a in order))
    kept = [axis for axis in range(len(x.shape)) if axis not in reduced]
    y_strides = tuple(y.strides[axis] for axis in kept) if len(y.shape) == len(x.shape) else y.strides
    return Axes(
        kept=tuple(x.shape[axis] for axis in kept),
        x_kept=tuple(x.strides[axis] for axis in kept),
        y_kept=y_strides,
        reduced=extents,
        x_reduced=strides,
    )


def reduce_steps(
    x: Operand, y: Operand, axes: Axes, reduction: Reduction, *, x_first: int = 0, y_first: int = 0
) -> tuple[Launch, ...]:
    """One launch for each walk over what is kept, from x's element `x_first` and y's `y_first` on.

    Where kept numbers are neighbours in both, a thread takes a vector of them.
    """
    unused = LOOPS - len(axes.reduced)
    inner_first = (axes.reduced[::-1] + (1,) * unused, axes.x_reduced[::-1] + (0,) * unused)
    loops: dict[str, Any] = {
        f"{letter}{i}": value
        for letter, values in zip("Rr", inner_first, strict=True)
        for i, value in enumerate(values)
    }
    launches: list[Launch] = []
    for walk in walks(axes.kept, axes.x_kept, axes.y_kept):
        places: dict[str, Any] = {
            "x": x.view(x_first + walk.starts[0]),
            "y": y.view(y_first + walk.starts[1]),
        }
        shared = places | loops | reduction.scalars() | walk.arguments("x", "y")
        columns, rows, *planes = walk.extents
        if shared["x0"] == shared["y0"] == 1 and columns > 1 and reduction.kind != "exponentials":
            del shared["x0"], shared["y0"]
            geometry = grid_and_block(ceil_div(columns, VECTOR), rows, math.prod(planes))
            launches += launch(Kernel(file=FILE, entry="reduce_vectors"), **geometry, **shared)
        else:
            launches += launch(Kernel(file=FILE, entry="reduce"), **walk.geometry(), **shared)
    return tuple(launches)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The outermost reduced axis in `count` pieces of `length`, the last perhaps shorter."""

    length: int
    count: int
    last: int


def parts_of(axes: Axes, wanted: int) -> Parts:
    extent = axes.reduced[0]
    length = ceil_div(extent, min(wanted, extent))
    count = ceil_div(extent, length)
    return Parts(length=length, count=count, last=extent - (count - 1) * length)


def split_steps(
    x: Operand, y: Operand, workspace: Operand, axes: Axes, reduction: Reduction, parts: Parts
) -> tuple[Launch, ...]:
    """The same in two stages: pieces into the workspace (pieces outermost), then pieces together."""
    kept_strides = row_major(axes.kept)
    piece = kept_strides[0] * axes.kept[0] if axes.kept else 1
    first = Reduction(kind=reduction.kind)
    step = axes.x_reduced[0]
    whole = parts.count if parts.last == parts.length else parts.count - 1
    steps: tuple[Launch, ...] = ()
    if whole:
        pieces = Axes(
            kept=(whole, *axes.kept),
            x_kept=(parts.length * step, *axes.x_kept),
            y_kept=(piece, *kept_strides),
            reduced=(parts.length, *axes.reduced[1:]),
            x_reduced=axes.x_reduced,
        )
        steps += reduce_steps(x, workspace, pieces, first)
    if whole < parts.count:
        rest = replace(axes, y_kept=kept_strides, reduced=(parts.last, *axes.reduced[1:]))
        x_first = whole * parts.length * step
        steps += reduce_steps(x, workspace, rest, first, x_first=x_first, y_first=whole * piece)
    together = Axes(
        kept=axes.kept, x_kept=kept_strides, y_kept=axes.y_kept, reduced=(parts.count,), x_reduced=(piece,)
    )
    last = replace(reduction, kind=_JOINED.get(reduction.kind, reduction.kind))
    return steps + reduce_steps(workspace, y, together, last)
