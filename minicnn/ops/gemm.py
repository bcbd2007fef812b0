"""Gemm: a product of two matrices plus a bias.

Shapes    a (M, K) or transposed, b (K, N) or transposed, c broadcast to (M, N) or absent
          -> y (M, N) = alpha * a @ b + beta * c, float32; on a GPU float16 too, b a constant
Source    ONNX operator Gemm
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements, epilogue
from minicnn.errors import ShapeError
from minicnn.geometry import broadcast_shape, broadcast_strides, row_major
from minicnn.graph import Epilogue, TensorType
from minicnn.ops.gemm_igemm import FullyConnected
from minicnn.product import Blas, Direct, Matrices, Strides
from minicnn.registry import Case, Cost, Problem, Variant, operator
from minicnn.step import Operand


@operator("Gemm", opsets=(1, None), fuses=epilogue.FUSIBLE)
@dataclass(frozen=True, kw_only=True)
class Gemm:
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0
    broadcast: int = 0  # until opset 6; later opsets broadcast anyhow

    def infer(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if len(a.extents) != 2 or len(b.extents) != 2:
            raise ShapeError("not matrices", expected="two axes", found=f"{a.extents}, {b.extents}")
        M, K = a.extents[::-1] if self.transA else a.extents
        rows, N = b.extents[::-1] if self.transB else b.extents
        if rows != K:
            expected = f"({N}, {K})" if self.transB else f"({K}, {N})"
            raise ShapeError(
                "the matrices don't fit together", tensor="b", expected=expected, found=b.extents
            )
        if c is not None and broadcast_shape(c.extents, (M, N)) != (M, N):
            raise ShapeError(
                "c can't be broadcast to the product", tensor="c", expected=(M, N), found=c.extents
            )
        return (TensorType(dtype=a.dtype, shape=(M, N)),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Blas(), FullyConnected())

    def cost(self, problem: Problem) -> Cost:
        macs = math.prod(problem.y.shape) * problem.x.shape[0 if self.transA else 1]
        return Cost(macs=macs, flops=2 * macs)

    def reference(self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
        product = self._turned(a, self.transA) @ self._turned(b, self.transB)
        return self.alpha * product + (0.0 if c is None else self.beta * c.astype(np.float64))

    def bound(self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
        terms = a.shape[0 if self.transA else 1] + 1
        product = self._turned(np.abs(a), self.transA) @ self._turned(np.abs(b), self.transB)
        bias = 0.0 if c is None else np.abs(self.beta * c.astype(np.float64))
        own = 4 * math.sqrt(terms) * epilogue.UNIT_ROUNDOFF * (abs(self.alpha) * product + bias)
        return own + elements.storage_bound(self.reference(a, b, c), a.dtype)

    @staticmethod
    def _turned(matrix: np.ndarray, is_transposed: int) -> np.ndarray:
        return (matrix.T if is_transposed else matrix).astype(np.float64)

    def matrices(self, problem: Problem) -> Matrices:
        a, b, y = problem.x, problem.inputs[1], problem.y
        assert b is not None
        bias = epilogue.own_input(problem, 2)
        return Matrices(
            a=a,
            b=b,
            m=y.shape[0],
            n=y.shape[1],
            k=a.shape[0 if self.transA else 1],
            a_strides=_strides(a, self.transA),
            b_strides=_strides(b, self.transB),
            y_row=y.strides[0],
            scale=self.alpha,
            bias=bias,
            bias_scale=self.beta,
            bias_strides=_bias_strides(bias),
        )


def _strides(matrix: Operand, is_transposed: int) -> Strides:
    row, column = matrix.strides
    return (column, row) if is_transposed else (row, column)


def _bias_strides(bias: Operand | None) -> Strides:
    row, column = broadcast_strides(bias.shape, row_major(bias.shape), 2) if bias else (0, 0)
    return row, column


_NOTHING = Epilogue()


def _case(
    gemm: Gemm, *shapes: tuple[int, ...], constants: tuple[int, ...] = (1, 2), fused: Epilogue = _NOTHING
) -> Case:
    return Case(operator=gemm, shapes=shapes, constants=constants, epilogue=fused)


_RELU = Epilogue(activation="Relu")
_CLIP = Epilogue(activation="Clip", alpha=-1.0, beta=0.5)

CASES = {
    "fully connected": _case(Gemm(transB=1), (3, 37), (21, 37), (21,), fused=_RELU),
    "one row": _case(Gemm(transB=1), (1, 400), (300, 400), (300,)),
    "one of everything": _case(Gemm(), (1, 1), (1, 1), (1,)),
    "no bias": _case(Gemm(), (5, 16), (16, 33), constants=(1,)),
    "alpha and beta": _case(Gemm(alpha=0.5, beta=-2.0), (4, 18), (18, 7), (4, 7), fused=_CLIP),
    "a transposed": _case(Gemm(transA=1), (18, 4), (18, 7), (7,)),
    "both transposed": _case(Gemm(transA=1, transB=1), (18, 4), (7, 18), (1, 7)),
    "a bias for each row": _case(Gemm(), (4, 18), (18, 7), (4, 1)),
    "one bias for all": _case(Gemm(beta=0.25), (4, 18), (18, 7), (1,)),
    "a scalar bias": _case(Gemm(), (4, 18), (18, 7), ()),
    "nothing constant": _case(Gemm(transB=1), (4, 18), (7, 18), (7,), constants=()),
    "float16": Case(
        operator=Gemm(transB=1), shapes=((3, 371), (42, 371), (42,), (3, 42)), constants=(1, 2),
        epilogue=Epilogue(activation="Relu", has_residual=True), dtype="float16",
    ),
    "float16, alpha and beta": Case(
        operator=Gemm(alpha=0.5, beta=-2.0), shapes=((70, 24), (24, 40), (1, 1)), constants=(1, 2),
        epilogue=_CLIP, dtype="float16",
    ),
    "one inner element": _case(Gemm(transA=1), (1, 6), (1, 5), (5,), constants=()),
    "one row, transposed": _case(Gemm(transA=1), (20, 1), (20, 9), (9,), constants=()),
    "residual": _case(
        Gemm(), (4, 18), (18, 7), (7,), (4, 7), fused=Epilogue(activation="Relu", has_residual=True)
    ),
}
