"""MatMul: products of matrices as numpy's `@` broadcasts them.

Shapes    a (..., M, K), b (..., K, N), a fused bias (N) or absent -> y (..., M, N), float32;
          a vector is a row on the left, a column on the right
Source    ONNX operator MatMul
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.errors import ShapeError
from minicnn.geometry import Shape, broadcast_shape, broadcast_strides
from minicnn.graph import Epilogue, TensorType
from minicnn.product import Blas, Direct, Matrices
from minicnn.registry import Case, Cost, Problem, Variant, operator


@operator("MatMul", opsets=(1, None), fuses=epilogue.FUSIBLE)
@dataclass(frozen=True, kw_only=True)
class MatMul:
    def infer(self, a: TensorType, b: TensorType, bias: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if not a.extents or not b.extents:
            raise ShapeError(
                "a scalar has no matrix product",
                expected="one axis or more",
                found=f"{a.extents}, {b.extents}",
            )
        left, right = _as_matrices(a.extents, b.extents)
        batch = broadcast_shape(left[:-2], right[:-2])
        if left[-1] != right[-2] or batch is None:
            raise ShapeError(
                "the matrices don't fit together",
                expected="(..., M, K), (..., K, N)",
                found=f"{a.extents}, {b.extents}",
            )
        if bias is not None and (bias.extents != right[-1:] or len(b.extents) == 1):
            raise ShapeError(
                "a bias is one number for each column", tensor="bias", expected=right[-1:], found=bias.extents
            )
        rows = () if len(a.extents) == 1 else (left[-2],)
        columns = () if len(b.extents) == 1 else (right[-1],)
        return (TensorType(dtype=a.dtype, shape=(*batch, *rows, *columns)),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Blas())

    def cost(self, problem: Problem) -> Cost:
        macs = math.prod(problem.y.shape) * problem.x.shape[-1]
        return Cost(macs=macs, flops=2 * macs)

    def reference(self, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        product = np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)))
        return product if bias is None else product + bias.astype(np.float64)

    def bound(self, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        magnitude = self.reference(np.abs(a), np.abs(b), None if bias is None else np.abs(bias))
        return 4 * math.sqrt(a.shape[-1] + 1) * epilogue.UNIT_ROUNDOFF * magnitude

    def matrices(self, problem: Problem) -> Matrices:
        a, b, y = problem.x, problem.inputs[1], problem.y
        assert b is not None
        left, right = _as_matrices(a.shape, b.shape)
        a_strides = a.strides if len(a.shape) > 1 else (a.shape[0], 1)
        b_strides = b.strides if len(b.shape) > 1 else (1, 1)
        batch = broadcast_shape(left[:-2], right[:-2])
        assert batch is not None
        m, n = left[-2], right[-1]
        y_row = y.strides[0] if len(a.shape) == len(b.shape) == 2 else n
        y_batch = tuple(math.prod(batch[axis + 1 :]) * m * n for axis in range(len(batch)))
        return Matrices(
            a=a,
            b=b,
            m=m,
            n=n,
            k=left[-1],
            a_strides=(a_strides[-2], a_strides[-1]),
            b_strides=(b_strides[-2], b_strides[-1]),
            y_row=y_row,
            batch=batch,
            a_batch=broadcast_strides(left[:-2], a_strides[:-2], len(batch)),
            b_batch=broadcast_strides(right[:-2], b_strides[:-2], len(batch)),
            y_batch=y_batch,
            bias=epilogue.own_input(problem, 2),
        )


def _as_matrices(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """A vector on the left is a row, one on the right a column."""
    return (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))


_NOTHING = Epilogue()


def _case(*shapes: tuple[int, ...], constants: tuple[int, ...] = (), fused: Epilogue = _NOTHING) -> Case:
    return Case(operator=MatMul(), shapes=shapes, constants=constants, epilogue=fused)


CASES = {
    "two matrices": _case((5, 19), (19, 33)),
    "constant weights, fused bias": _case(
        (5, 19), (19, 33), (33,), constants=(1, 2), fused=Epilogue(activation="Relu")
    ),
    "one of everything": _case((1, 1), (1, 1)),
    "batches": _case((2, 3, 4, 9), (2, 3, 9, 5)),
    "batched rows, one matrix": _case(
        (2, 3, 4, 9), (9, 5), (5,), constants=(1, 2), fused=Epilogue(activation="Clip", beta=0.5)
    ),
    "one matrix, batched columns": _case((4, 9), (3, 9, 5)),
    "batches stretched on both sides": _case((2, 1, 4, 9), (1, 3, 9, 5)),
    "batches stretched in the middle": _case((2, 3, 2, 4, 9), (2, 1, 2, 9, 5)),
    "batches, residual": _case(
        (2, 4, 9), (2, 9, 5), (5,), (2, 4, 5), fused=Epilogue(activation="Relu", has_residual=True)
    ),
    "vector on the left": _case((9,), (9, 5)),
    "vector on the right": _case((4, 9), (9,)),
    "two vectors": _case((9,), (9,)),
    "vector and batches": _case((9,), (3, 9, 5)),
    "batches and vector": _case((3, 4, 9), (9,)),
}
