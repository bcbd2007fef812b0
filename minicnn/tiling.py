"""How threads are laid over a matrix of rows and columns, columns along x (contiguous memory)."""

from __future__ import annotations

from minicnn.geometry import ceil_div
from minicnn.step import Extent3

VECTOR = 16  # channels a thread of an NHWC kernel takes: VECTOR in the .cu files


def tile(*, columns: int, rows: int, threads: int = 256) -> tuple[Extent3, Extent3]:
    """(grid, block): x over columns, y over rows; a block takes as many columns as there are, up to `threads`."""
    wide = 1
    while wide < min(columns, threads):
        wide *= 2
    high = max(1, min(threads // wide, rows))
    return (ceil_div(columns, wide), ceil_div(rows, high), 1), (wide, high, 1)
