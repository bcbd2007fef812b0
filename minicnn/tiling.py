"""How threads are laid over tensors: x always along contiguous memory, so that neighbours read neighbours."""

from __future__ import annotations

from typing import TypedDict

from minicnn.geometry import ceil_div, round_up
from minicnn.step import Extent3

VECTOR = 16  # channels a thread of an NHWC kernel takes: VECTOR in cuda/channels.cuh


class Tiling(TypedDict):
    """Grid and block as `kernels.launch` takes them."""

    grid: Extent3
    block: Extent3


def planes(*, columns: int, rows: int = 1, planes: int = 1) -> Tiling:
    """NCHW: threads along a row of a plane; grid y: rows, grid z: planes."""
    width = min(256, round_up(columns, 32))
    return Tiling(grid=(ceil_div(columns, width), rows, planes), block=(width, 1, 1))


def matrix(*, columns: int, rows: int, planes: int = 1, threads: int = 256) -> Tiling:
    """NHWC: x over columns (channels or vectors of them), y over rows (pixels), grid z: planes."""
    width = 1
    while width < min(columns, threads):
        width *= 2
    height = max(1, min(threads // width, rows))
    return Tiling(grid=(ceil_div(columns, width), ceil_div(rows, height), planes), block=(width, height, 1))


def vectors(*, channels: int, rows: int, planes: int = 1, threads: int = 64) -> Tiling:
    """As `matrix`, a vector of channels a thread."""
    return matrix(columns=ceil_div(channels, VECTOR), rows=rows, planes=planes, threads=threads)
