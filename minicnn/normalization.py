"""Statistics of groups of numbers, numbers moved and scaled by them: what normalizing operators share.

Three launches: mean and squares of chunks (each read twice, the second time from cache); chunks put together
a group; every element moved and scaled.

Source    Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", 1983
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import tiling
from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.geometry import ceil_div, round_up
from minicnn.kernels import launch
from minicnn.step import Kernel, Operand, Step, View

Views = dict[str, Any]  # what a kernel calls its statistics -> where they lie

FILE = "normalization.cu"
CHUNK = 256  # elements of a row that a thread takes: 1 KiB, still in the cache when it is read again
PIXELS = 64  # pixels of an NHWC chunk at least: 4 KiB a vector of channels
CHUNKS = 16  # chunks of an NHWC image at most: what a thread that puts a group together has to read


@dataclass(frozen=True, kw_only=True)
class Roots:
    """reciprocal = 1 / (sqrt(variance + inside) + outside)"""

    inside: float = 0.0
    outside: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """`count` chunks of `size` elements, the last of `last` elements."""

    size: int
    count: int
    last: int

    def arguments(self) -> dict[str, int]:
        return {"CHUNK": self.size, "CHUNKS": self.count}

    def finish_arguments(self) -> dict[str, int]:
        return {"CHUNKS": self.count, "size": self.size, "last_size": self.last}


def chunks_of(elements: int, size: int) -> Chunks:
    count = ceil_div(elements, size)
    return Chunks(size=size, count=count, last=elements - (count - 1) * size)


def chunks_of_row(L: int) -> Chunks:
    return chunks_of(L, CHUNK)


def chunks_of_image(pixels: int) -> Chunks:
    return chunks_of(pixels, max(PIXELS, ceil_div(pixels, CHUNKS)))


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where in a workspace statistics lie: of chunks, then of groups."""

    parts: int
    groups: int

    @property
    def nbytes(self) -> int:
        return 4 * 2 * (self.parts + self.groups)

    def views(self, workspace: Operand | None) -> Views:
        assert workspace is not None
        starts = (0, self.parts, 2 * self.parts, 2 * self.parts + self.groups)
        names = ("mean", "squares", "group_mean", "reciprocal")
        return {name: workspace.view(start) for name, start in zip(names, starts, strict=True)}


def row_space(rows: int, L: int) -> Space:
    return Space(parts=rows * chunks_of_row(L).count, groups=rows)


def row_statistics(
    x: View, views: Views, *, rows: int, L: int, roots: Roots, joined: int = 1
) -> tuple[Step, ...]:
    """Mean and reciprocal of rows of L elements; `joined` rows, a joined-th of all apart, are one group."""
    chunks = chunks_of_row(L)
    parts = launch(
        Kernel(file=FILE, entry="row_statistics"),
        **tiling.matrix(columns=chunks.count, rows=rows),
        x=x,
        mean=views["mean"],
        squares=views["squares"],
        ROWS=rows,
        L=L,
        **chunks.arguments(),
    )
    groups = rows // joined
    return parts + launch(
        Kernel(file=FILE, entry="finish_statistics"),
        **tiling.matrix(columns=groups, rows=1),
        **views,
        A=1,
        B=groups,
        J=joined,
        COPIES=1,
        a_step=0,
        b_step=chunks.count,
        chunk_step=1,
        j_step=groups * chunks.count,
        out_a=0,
        out_b=1,
        out_copy=0,
        inside=roots.inside,
        outside=roots.outside,
        **chunks.finish_arguments(),
    )


def channel_space(x: Operand) -> Space:
    N, C, *spatial = x.shape
    padded = round_up(C, tiling.VECTOR)
    return Space(parts=N * chunks_of_image(math.prod(spatial)).count * padded, groups=N * padded)


def channel_statistics(
    x: Operand, views: Views, *, group: int, joins_images: bool, roots: Roots
) -> tuple[Step, ...]:
    """Mean and reciprocal for each image and channel of NHWC: those of the channel's group of `group`
    channels, of all images together if `joins_images`."""
    N, C, *spatial = x.shape
    HW, padded = math.prod(spatial), round_up(C, tiling.VECTOR)
    chunks = chunks_of_image(HW)
    parts = launch(
        Kernel(file=FILE, entry="channel_statistics"),
        **tiling.vectors(channels=C, rows=chunks.count, planes=N),
        x=x,
        mean=views["mean"],
        squares=views["squares"],
        C=C,
        HW=HW,
        CP=padded,
        x_stride=x.pixel_stride,
        **chunks.arguments(),
    )
    image = chunks.count * padded
    shape: dict[str, Any] = {
        "A": N, "B": C // group, "J": group, "COPIES": group, "a_step": image, "b_step": group, "j_step": 1,
        "out_a": padded, "out_b": group, "out_copy": 1,
    }  # fmt: skip
    if joins_images:
        assert group == 1
        shape |= {"A": 1, "J": N, "COPIES": N, "j_step": image, "out_copy": padded}
    return parts + launch(
        Kernel(file=FILE, entry="finish_statistics"),
        **tiling.matrix(columns=shape["B"], rows=shape["A"]),
        **views,
        **shape,
        chunk_step=padded,
        inside=roots.inside,
        outside=roots.outside,
        **chunks.finish_arguments(),
    )


def normalize_rows(
    x: Operand, y: Operand, views: Views, *, rows: int, L: int, scale: Operand | None, bias: Operand | None
) -> tuple[Step, ...]:  # fmt: skip
    return launch(
        Kernel(file=FILE, entry="normalize_rows"),
        **tiling.matrix(columns=L, rows=rows),
        x=x,
        mean=views["group_mean"],
        reciprocal=views["reciprocal"],
        scale=scale,
        bias=bias,
        y=y,
        ROWS=rows,
        L=L,
    )


def normalize_planes(
    x: Operand,
    y: Operand,
    views: Views,
    *,
    group: int,
    joins_images: bool = False,
    scale: Operand | None = None,
    bias: Operand | None = None,
) -> tuple[Step, ...]:
    """NCHW; scale and bias of any number of entries that divides the channels."""
    N, C, *spatial = x.shape
    HW = math.prod(spatial)
    return launch(
        Kernel(file=FILE, entry="normalize_planes"),
        **tiling.matrix(columns=HW, rows=C, planes=N),
        x=x,
        mean=views["group_mean"],
        reciprocal=views["reciprocal"],
        scale=scale,
        bias=bias,
        y=y,
        C=C,
        HW=HW,
        group=group,
        scale_group=C // scale.shape[0] if scale else 1,
        n_step=0 if joins_images else C // group,
    )


def normalize_channels(
    x: Operand, y: Operand, views: Views, *, scale: Operand | None = None, bias: Operand | None = None
) -> tuple[Step, ...]:  # fmt: skip
    """NHWC; scale and bias one a channel."""
    N, C, *spatial = x.shape
    HW = math.prod(spatial)
    return launch(
        Kernel(file=FILE, entry="normalize_channels"),
        **tiling.vectors(channels=C, rows=HW, planes=N),
        x=x,
        mean=views["group_mean"],
        reciprocal=views["reciprocal"],
        scale=scale,
        bias=bias,
        y=y,
        C=C,
        HW=HW,
        CP=round_up(C, tiling.VECTOR),
        x_stride=x.pixel_stride,
        y_stride=y.pixel_stride,
    )


@dataclass(frozen=True, kw_only=True)
class Normalized:
    """The definition in float64: x - mean, times reciprocal; and how far float32 may be from it.

    mean and reciprocal keep the averaged axes with extent 1
    """

    mean: np.ndarray
    reciprocal: np.ndarray
    y: np.ndarray
    mean_bound: np.ndarray
    reciprocal_bound: np.ndarray
    bound: np.ndarray


def normalized(x: np.ndarray, axes: tuple[int, ...], roots: Roots) -> Normalized:
    """A mean of K numbers is off by 4*sqrt(K) roundings of their mean size. So is the mean square, and beside
    that it has what a shift of the (chunk's) mean makes of it. A root halves what is relative."""
    x = x.astype(np.float64)
    size = math.prod(x.shape[axis] for axis in axes)
    unit = 4 * math.sqrt(size) * UNIT_ROUNDOFF
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    root = np.sqrt(variance + roots.inside)
    reciprocal = 1 / (root + roots.outside)
    mean_bound = (unit + 2 * UNIT_ROUNDOFF) * np.abs(x).mean(axis=axes, keepdims=True)
    variance_bound = unit * variance + 2 * np.sqrt(variance) * mean_bound + mean_bound**2
    relative = variance_bound / (2 * (variance + roots.inside)) + 4 * UNIT_ROUNDOFF
    away = np.abs(x - mean)
    return Normalized(
        mean=mean,
        reciprocal=reciprocal,
        y=(x - mean) * reciprocal,
        mean_bound=mean_bound,
        reciprocal_bound=relative * reciprocal,
        bound=reciprocal * (mean_bound + away * (relative + 3 * UNIT_ROUNDOFF)),
    )


def affine(found: Normalized, scale: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(value, bound) of y * scale + bias; both already of a shape that broadcasts."""
    scale = scale.astype(np.float64)
    y = found.y * scale
    bound = np.abs(scale) * (found.bound + 2 * UNIT_ROUNDOFF * np.abs(found.y))
    if bias is None:
        return y, bound
    bias = bias.astype(np.float64)
    return y + bias, bound + 2 * UNIT_ROUNDOFF * (np.abs(y) + np.abs(bias))
