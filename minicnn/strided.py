"""Walks over strided memory: the copy between any two layouts, and the loops of elementwise operators.

Not here  which operand has which layout: that is the plan's
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from minicnn.geometry import Shape, broadcast_strides, ceil_div, merge_axes, round_up
from minicnn.kernels import launch
from minicnn.step import Kernel, Launch, Operand, View

Strides = tuple[int, ...]

BLOCK_X = 512  # threads along memory: a CPU wants long rows, a GPU full warps
BLOCK = 256  # threads of a block whose rows are shorter than that
AXES = 4  # loops of a kernel: threads' x and y, and two in the grid's z
TILE = 8  # elements that a thread of copy_tile moves: 32 bytes, one sector of a GPU's memory


def grid_and_block(columns: int, rows: int = 1, planes: int = 1) -> dict[str, Any]:
    """One thread an element: threadIdx.x along `columns`, threadIdx.y along `rows`, grid z over `planes`."""
    block_x = min(round_up(columns, 32) if columns > 16 else columns, BLOCK_X)
    block_y = max(min(rows, BLOCK // block_x), 1)
    grid = (ceil_div(columns, block_x), ceil_div(rows, block_y), planes)
    return {"grid": grid, "block": (block_x, block_y, 1)}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Operands of one shape and order as `count` rows of `width` neighbouring elements; dense ones one row.

    strides   an operand each: elements from row to row
    """

    width: int
    count: int
    strides: tuple[int, ...]


def rows(*operands: Operand) -> Rows:
    """NHWC: a row is a pixel, with the channel padding that every operand has. NCHW: a row is an image."""
    shape = operands[0].shape
    if len(shape) < 2:
        return Rows(width=math.prod(shape), count=1, strides=(0,) * len(operands))
    if operands[0].layout.order == "NHWC":
        width, count = min(o.channels_padded for o in operands), shape[0] * math.prod(shape[2:])
        strides = tuple(o.pixel_stride for o in operands)
    else:
        width, count = math.prod(shape[1:]), shape[0]
        strides = tuple(o.strides[0] for o in operands)
    if all(stride == width for stride in strides):
        width, count = width * count, 1
    return Rows(width=width, count=count, strides=strides)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """AXES nested loops, the innermost first, that visit the elements of several operands together.

    strides   an operand each: elements from step to step of every loop
    starts    an operand each: elements from its first one to where this walk begins
    """

    extents: Shape
    strides: tuple[Strides, ...]
    starts: tuple[int, ...]

    def geometry(self) -> dict[str, Any]:
        columns, rows, *planes = self.extents
        return grid_and_block(columns, rows, math.prod(planes))

    def arguments(self, *names: str) -> dict[str, Any]:
        """Kernel arguments: E0, E1, E2 (the grid knows the last) and, for an operand called a, a0 to a3."""
        extents = {f"E{axis}": extent for axis, extent in enumerate(self.extents[:-1])}
        strides = zip(names, self.strides, strict=True)
        return extents | {f"{name}{axis}": stride for name, own in strides for axis, stride in enumerate(own)}


def walks(extents: Shape, *strides: Strides) -> tuple[Walk, ...]:
    """Visits every element in the order in which the last operand lies in memory, neighbouring axes merged.

    Usually one walk; where more than AXES axes are left, one for every step along the shortest outer ones.
    """
    if 0 in extents:
        return ()
    order = sorted(range(len(extents)), key=lambda axis: strides[-1][axis], reverse=True)
    in_order = [tuple(values[axis] for axis in order) for values in (extents, *strides)]
    merged_extents, merged_strides = merge_axes(*in_order)
    axes = list(zip(merged_extents, *merged_strides, strict=True))[::-1]
    by_extent = sorted(range(2, len(axes)), key=lambda place: axes[place][0])
    outer = by_extent[: max(len(axes) - AXES, 0)]
    kept = [axis for place, axis in enumerate(axes) if place not in outer]
    kept += [(1,) + (0,) * len(strides)] * (AXES - len(kept))
    own_extents, *own_strides = zip(*kept, strict=True)
    result = []
    for indices in itertools.product(*(range(axes[place][0]) for place in outer)):
        moved = [tuple(i * s for s in axes[place][1:]) for i, place in zip(indices, outer, strict=True)]
        starts = tuple(map(sum, zip(*moved, strict=True))) if moved else (0,) * len(strides)
        result.append(Walk(extents=own_extents, strides=tuple(own_strides), starts=starts))
    return tuple(result)


def copy_steps(source: Operand, target: Operand) -> tuple[Launch, ...]:
    """Copies between any two layouts of one logical shape and type. Channel padding is left as it is."""
    return move_steps(target.shape, source, source.strides, target, target.strides)


def move_steps(
    extents: Shape, source: Operand, x_strides: Strides, target: Operand, y_strides: Strides,
    *, x_first: int = 0, y_first: int = 0,
) -> tuple[Launch, ...]:  # fmt: skip
    """Copies `extents` elements; each operand is walked by its strides, from its element `first` on.

    Elements of 4 or 8 bytes move as words, all others as bytes.
    """
    unit = 4 if source.itemsize % 4 == 0 else 1
    parts = source.itemsize // unit
    extents = (*extents, parts)
    in_units = [(*(s * parts for s in strides), 1) for strides in (x_strides, y_strides)]
    x_start, y_start = source.view(x_first).byte_offset, target.view(y_first).byte_offset
    launches: list[Launch] = []
    for walk in walks(extents, *in_units):
        x = View(tensor=source.name, byte_offset=x_start + walk.starts[0] * unit)
        y = View(tensor=target.name, byte_offset=y_start + walk.starts[1] * unit)
        if unit == 4 and _is_transposed(walk):
            launches += _tile_copy(walk, x, y)
        else:
            launches += _plain_copy(walk, unit, x, y)
    return tuple(launches)


def _is_transposed(walk: Walk) -> bool:
    """Whether source and target have neighbours along different axes: a tile then suits both."""
    x, y = walk.strides
    return y[0] == 1 and x[0] != 1 and 1 in x[1:] and walk.extents[x.index(1)] >= 4


def _plain_copy(walk: Walk, unit: int, x: View, y: View) -> tuple[Launch, ...]:
    kernel = Kernel(file="strided_copy.cu", entry="copy_words" if unit == 4 else "copy_bytes")
    return launch(kernel, **walk.geometry(), x=x, y=y, **walk.arguments("x", "y"))


def _tile_copy(walk: Walk, x: View, y: View) -> tuple[Launch, ...]:
    across = walk.strides[0].index(1)
    k, l = (axis for axis in range(1, AXES) if axis != across)  # noqa: E741
    (x_strides, y_strides), extents = walk.strides, walk.extents
    geometry = grid_and_block(extents[across], ceil_div(extents[0], TILE), extents[k] * extents[l])
    return launch(
        Kernel(file="strided_copy.cu", entry="copy_tile", defines=(("TILE", TILE),)),
        **geometry, x=x, y=y, A=extents[across], B=extents[0], E2=extents[k],
        x_b=x_strides[0], x2=x_strides[k], x3=x_strides[l],
        y_a=y_strides[across], y2=y_strides[k], y3=y_strides[l],
    )  # fmt: skip


def walked_shape(y: Operand, *operands: Operand) -> Shape:
    """The shape of y with its channels rounded up as far as every operand (broadcast to y) lets a kernel go.

    Walking the padding too is what makes a dense NHWC tensor one long row.
    """
    if y.layout.order != "NHWC" or y.shape[1] == 1:
        return y.shape
    channels = y.channels_padded
    for operand in operands:
        axis = 1 - (len(y.shape) - len(operand.shape))  # of the operand, where y has its channels
        if axis < 0 or operand.shape[axis] == 1:
            continue
        is_padded = axis == 1 and operand.layout.order == "NHWC"
        channels = min(channels, operand.channels_padded if is_padded else y.shape[1])
    return (y.shape[0], channels, *y.shape[2:])


def broadcast_walks(y: Operand, *operands: Operand) -> tuple[Walk, ...]:
    """Walks over y with `operands` broadcast to its shape; y's strides are the last."""
    rank = len(y.shape)
    stretched = (broadcast_strides(o.shape, o.strides, rank) for o in operands)
    return walks(walked_shape(y, *operands), *stretched, y.strides)


def row_steps(kernel: Kernel, x: Operand, y: Operand, **scalars: Any) -> tuple[Launch, ...]:
    """Launches of `kernel(x, y, rows, width, x_stride, y_stride, ...scalars)`, one thread an element."""
    shared = rows(x, y)
    if not shared.width * shared.count:
        return ()
    x_stride, y_stride = shared.strides
    return launch(
        kernel, **grid_and_block(shared.width, shared.count), x=x, y=y,
        rows=shared.count, width=shared.width, x_stride=x_stride, y_stride=y_stride, **scalars,
    )  # fmt: skip
