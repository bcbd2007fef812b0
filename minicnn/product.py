"""Matrix products for Gemm and MatMul: every matrix by its strides, so that a transpose or a broadcast is no work.

An operator that has `matrices(problem) -> Matrices` can list `Direct()` and `Blas()` among its variants.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from minicnn import epilogue
from minicnn.geometry import Shape, ceil_div, merge_axes, round_up
from minicnn.kernels import launch
from minicnn.registry import Orders, Problem, Variant
from minicnn.step import Gemm, Kernel, Operand, Step

Strides = tuple[int, int]  # elements from row to row and from column to column


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """y[z] = scale * a[z] @ b[z] + bias_scale * bias: a is m x k, b k x n; `batch` are extents of z, merged or not.

    *_batch   strides along each axis of the batch, 0 where a matrix is used again
    bias      broadcast to the rows and columns by its strides (0 or, along columns, 1)
    y_row     columns of y are neighbours
    """

    a: Operand
    b: Operand
    m: int
    n: int
    k: int
    a_strides: Strides
    b_strides: Strides
    y_row: int
    batch: Shape = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    y_batch: tuple[int, ...] = ()
    scale: float = 1.0
    bias: Operand | None = None
    bias_scale: float = 1.0
    bias_strides: Strides = (0, 1)

    def products(self) -> tuple[tuple[Matrices, int, int, int], ...]:
        """The same work as products with one axis of batch at most, and where their a, b and y start."""
        batch, (a_batch, b_batch, y_batch) = merge_axes(self.batch, self.a_batch, self.b_batch, self.y_batch)
        inner = _replaced(self, batch[-1], a_batch[-1], b_batch[-1], y_batch[-1])
        result = []
        for place in itertools.product(*(range(extent) for extent in batch[:-1])):
            starts = [sum(i * s for i, s in zip(place, strides, strict=False)) for strides in (a_batch, b_batch, y_batch)]
            result.append((inner, starts[0], starts[1], starts[2]))
        return tuple(result)


def _replaced(matrices: Matrices, batch: int, a_batch: int, b_batch: int, y_batch: int) -> Matrices:
    """One axis of batch; where every product has the same b and rows go on evenly, just more rows."""
    from dataclasses import replace

    a_row, a_column = matrices.a_strides
    more_rows = b_batch == 0 and a_column == 1 and a_batch == matrices.m * a_row and y_batch == matrices.m * matrices.y_row
    if batch == 1 or more_rows:
        return replace(matrices, m=matrices.m * batch, batch=(1,), a_batch=(0,), b_batch=(0,), y_batch=(0,))
    return replace(matrices, batch=(batch,), a_batch=(a_batch,), b_batch=(b_batch,), y_batch=(y_batch,))
