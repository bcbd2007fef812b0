"""Products for Gemm and MatMul: matrices by their strides, so that a transpose or broadcast costs nothing.

An operator that has `matrices(problem) -> Matrices` can list `Direct()` and `Blas()` among its variants.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from minicnn import epilogue, tiling
from minicnn.geometry import Shape, merge_axes
from minicnn.kernels import launch
from minicnn.registry import Orders, Problem, Variant
from minicnn.step import Gemm, Kernel, Operand, Step

Strides = tuple[int, int]  # elements from row to row and from column to column


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """y[z] = scale * a[z] @ b[z] + bias_scale * bias: a is m x k, b k x n; z runs over `batch`.

    strides   one of the two is 1
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

    def products(self) -> tuple[Product, ...]:
        """The same work as products with one axis of batch at most."""
        batch, (a_batch, b_batch, y_batch) = merge_axes(self.batch, self.a_batch, self.b_batch, self.y_batch)
        rows = self.m
        if self._rows_go_on(batch[-1], a_batch[-1], b_batch[-1], y_batch[-1]):
            rows *= batch[-1]
        return tuple(
            Product(
                m=rows,
                batch=batch[-1] if rows == self.m else 1,
                a_batch=a_batch[-1],
                b_batch=b_batch[-1],
                y_batch=y_batch[-1],
                a_start=_start(place, a_batch),
                b_start=_start(place, b_batch),
                y_start=_start(place, y_batch),
            )
            for place in itertools.product(*(range(extent) for extent in batch[:-1]))
        )

    def _rows_go_on(self, batch: int, a_batch: int, b_batch: int, y_batch: int) -> bool:
        """Every product has the same b, and rows go on evenly: they are one with more rows."""
        a_row, a_column = self.a_strides
        return b_batch == 0 and a_column == 1 and a_batch == self.m * a_row and y_batch == self.m * self.y_row


@dataclass(frozen=True, kw_only=True)
class Product:
    """`batch` products of m rows at equal distances; *_start: elements from the operands' beginnings."""

    m: int
    batch: int
    a_batch: int
    b_batch: int
    y_batch: int
    a_start: int
    b_start: int
    y_start: int


def _start(place: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum(index * stride for index, stride in zip(place, strides[:-1], strict=True))


class _Product(Variant):
    def orders(self, problem: Problem) -> Orders:
        """Two matrices may lie as they like: a row stride says it all. Batches and vectors are row-major."""
        order = "any" if all(len(o.shape) == 2 for o in (*problem.inputs[:2], problem.y) if o) else "NCHW"
        own = epilogue.orders(problem, order)
        return Orders(inputs=(order, order, *own.inputs[2:]), outputs=(order,))


class Direct(_Product):
    """The textbook's three loops, two of them the grid's."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        matrices: Matrices = problem.operator.matrices(problem)
        residual, bias = problem.residual, matrices.bias
        steps: list[Step] = []
        for product in matrices.products():
            steps += launch(
                Kernel(file="gemm.cu", entry="gemm_direct"),
                **tiling.planes(columns=matrices.n, rows=product.m, planes=product.batch),
                a=matrices.a.view(product.a_start),
                b=matrices.b.view(product.b_start),
                bias=bias,
                residual=residual.view(product.y_start) if residual else None,
                y=problem.y.view(product.y_start),
                M=product.m,
                N=matrices.n,
                K=matrices.k,
                a_row=matrices.a_strides[0],
                a_column=matrices.a_strides[1],
                b_row=matrices.b_strides[0],
                b_column=matrices.b_strides[1],
                bias_row=matrices.bias_strides[0],
                bias_column=matrices.bias_strides[1],
                residual_row=row_stride(residual) if residual else 0,
                y_row=matrices.y_row,
                a_batch=product.a_batch,
                b_batch=product.b_batch,
                y_batch=product.y_batch,
                scale=matrices.scale,
                bias_scale=matrices.bias_scale,
                **epilogue.arguments(problem.epilogue),
            )
        return tuple(steps)


class Blas(_Product):
    """The device's GEMM, then bias, residual and activation in one pass over y."""

    name = "blas"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        matrices: Matrices = problem.operator.matrices(problem)
        residual, y = problem.residual, problem.y
        a_leading, transpose_a = _leading(matrices.a_strides)
        b_leading, transpose_b = _leading(matrices.b_strides)
        steps: list[Step] = [
            Gemm(
                m=product.m,
                n=matrices.n,
                k=matrices.k,
                a=matrices.a.view(product.a_start),
                b=matrices.b.view(product.b_start),
                c=y.view(product.y_start),
                lda=a_leading,
                ldb=b_leading,
                ldc=matrices.y_row,
                transpose_a=transpose_a,
                transpose_b=transpose_b,
                alpha=matrices.scale,
                batch=product.batch,
                stride_a=product.a_batch,
                stride_b=product.b_batch,
                stride_c=product.y_batch,
            )
            for product in matrices.products()
        ]
        steps += epilogue.row_step(
            problem,
            rows=math.prod(matrices.batch) * matrices.m,
            columns=matrices.n,
            bias=matrices.bias,
            row_strides=(matrices.y_row, row_stride(residual) if residual else 0),
            bias_scale=matrices.bias_scale,
            bias_strides=matrices.bias_strides,
        )
        return tuple(steps)


def _leading(strides: Strides) -> tuple[int, bool]:
    """(leading dimension, whether the matrix is stored transposed)"""
    row, column = strides
    return (row, False) if column == 1 else (column, True)


def row_stride(operand: Operand) -> int:
    """Elements from one row of the last axis to the next."""
    return operand.strides[-2] if len(operand.shape) > 1 else operand.shape[-1]
