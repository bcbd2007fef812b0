"""cuBLAS: matrix products on the GPU. Precision goes with each product.

What scikit-cuda doesn't wrap (GemmEx, strided batches, workspace) is declared on the library it loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from minicnn.device.base import Action
from minicnn.device.cuda_libraries import Functions
from minicnn.errors import DeviceError
from minicnn.step import Gemm

WORKSPACE_BYTES = (
    32 << 20
)  # what cuBLAS takes by itself on sm_90; given by us, so that a graph allocates nothing
REMEDY = "install the CUDA toolkit's libcublas, or `pip install nvidia-cublas`"
_DEFAULT_ALGORITHM = -1
_R_32F, _R_16F = 0, 2
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77

# precision -> how a and b are stored, how c is stored, how it is computed
_PRECISIONS = {
    "fp32": (_R_32F, _R_32F, _COMPUTE_32F),
    "tf32": (_R_32F, _R_32F, _COMPUTE_32F_FAST_TF32),
    "fp16": (_R_16F, _R_16F, _COMPUTE_32F),
}
_STATUS = {
    1: "not initialised",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
    16: "licence error",
}

_VOID, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_MATRIX = (_VOID, _INT, _INT)
_PROTOTYPES: dict[str, list[Any]] = {
    "cublasCreate_v2": [_VOID],
    "cublasDestroy_v2": [_VOID],
    "cublasGetVersion_v2": [_VOID, _VOID],
    "cublasSetStream_v2": [_VOID, _VOID],
    "cublasSetWorkspace_v2": [_VOID, _VOID, ctypes.c_size_t],
    # handle, op a, op b, m, n, k, alpha, a type lda, b type ldb, beta, c type ldc, compute, algorithm
    "cublasGemmEx": [_VOID, *[_INT] * 5, _VOID, *_MATRIX, *_MATRIX, _VOID, *_MATRIX, _INT, _INT],
    # the same with a stride behind each leading dimension, and the number of batches before compute
    "cublasGemmStridedBatchedEx": [
        *(_VOID, *[_INT] * 5, _VOID, *_MATRIX, _LONG, *_MATRIX, _LONG, _VOID, *_MATRIX, _LONG),
        *(_INT, _INT, _INT),
    ],
}


class Cublas:
    """One cuBLAS handle on one stream.

    Raises    DeviceError: no libcublas, or it refuses
    """

    def __init__(self, *, stream: int, workspace: int, workspace_bytes: int):
        self._handle = _VOID()
        self._library = Functions("cublas", _PROTOTYPES, _STATUS, REMEDY)
        self._library.call("cublasCreate_v2", ctypes.byref(self._handle))
        self._library.call("cublasSetStream_v2", self._handle, stream)
        # After the stream, which resets it.
        self._library.call("cublasSetWorkspace_v2", self._handle, workspace, workspace_bytes)

    @property
    def found_by(self) -> str:
        return self._library.found_by

    @property
    def version(self) -> str:
        number = _INT()
        self._library.call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        major, rest = divmod(number.value, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def gemm(self, step: Gemm, *, a: int, b: int, c: int) -> Action:
        """The product, ready to be enqueued again and again.

        cuBLAS counts matrices by columns: a row-major c = a @ b is to it c^T = b^T @ a^T, so the operands
        change places, m and n with them, and nothing is transposed that the step doesn't transpose.
        """
        if step.precision not in _PRECISIONS:
            raise DeviceError(
                "an unknown precision", operator=step, found=step.precision, accepted=list(_PRECISIONS)
            )
        stored, result, compute = _PRECISIONS[step.precision]
        alpha, beta = (ctypes.byref(ctypes.c_float(scale)) for scale in (step.alpha, step.beta))
        m, n, k = step.m, step.n, step.k
        ldb = _leading(step.ldb, *((n, k) if step.transpose_b else (k, n)))
        lda = _leading(step.lda, *((k, m) if step.transpose_a else (m, k)))
        left: tuple[object, ...] = (b, stored, ldb)
        right: tuple[object, ...] = (a, stored, lda)
        product: tuple[object, ...] = (c, result, _leading(step.ldc, m, n))
        name = "cublasGemmEx"
        batches: tuple[int, ...] = ()
        if step.batch > 1:
            name = "cublasGemmStridedBatchedEx"
            left, right, product = (*left, step.stride_b), (*right, step.stride_a), (*product, step.stride_c)
            batches = (step.batch,)
        operations = (int(step.transpose_b), int(step.transpose_a))
        arguments = (self._handle, *operations, n, m, k, alpha, *left, *right, beta, *product, *batches)
        arguments = (*arguments, compute, _DEFAULT_ALGORITHM)
        return self._library.prepare(name, *arguments)

    def close(self) -> None:
        if self._handle:
            with contextlib.suppress(DeviceError):  # after a fault the context has taken it along
                self._library.call("cublasDestroy_v2", self._handle)
            self._handle = _VOID()


def _leading(stride: int, rows: int, columns: int) -> int:
    """cuBLAS wants a whole row's length from row to row, even where there is no second row to go to."""
    return max(stride, columns) if rows == 1 else stride
