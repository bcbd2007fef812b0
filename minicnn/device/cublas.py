"""cuBLAS: matrix products on the GPU, through the library that scikit-cuda loads, or one found here.

scikit-cuda 0.5.3 is of 2019: it asks for pkg_resources, for np.typeDict and for libraries under names that
today's CUDA no longer has. `_as_in_2019` lends it these while it is imported. What it doesn't wrap
(GemmEx, strided batches, workspace) is declared on the library it loaded. Precision goes with each product.

Needs     a current CUDA context as the library is looked for: scikit-cuda makes a handle when it is imported
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.device import nvcc
from minicnn.device.base import Action
from minicnn.errors import DeviceError
from minicnn.step import Gemm

WORKSPACE_BYTES = (
    32 << 20
)  # what cuBLAS takes by itself on sm_90; given by us, so that a graph allocates nothing
REMEDY = "install the CUDA toolkit's libcublas, or `pip install nvidia-cublas`"
_MAJORS = ("13", "12", "11", "1")
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
        library, self.found_by = find_library()
        self._functions = {
            name: _declare(library, name, arguments) for name, arguments in _PROTOTYPES.items()
        }
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, stream)
        # After the stream, which resets it.
        self._call("cublasSetWorkspace_v2", self._handle, workspace, workspace_bytes)

    @property
    def version(self) -> str:
        number = _INT()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
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
        function = self._functions[name]

        def enqueue() -> None:
            if status := function(*arguments):
                raise _refusal(name, status)

        return enqueue

    def _call(self, name: str, *arguments: object) -> None:
        if status := self._functions[name](*arguments):
            raise _refusal(name, status)

    def close(self) -> None:
        if self._handle:
            self._functions["cublasDestroy_v2"](self._handle)
            self._handle = _VOID()


def _leading(stride: int, rows: int, columns: int) -> int:
    """cuBLAS wants a whole row's length from row to row, even where there is no second row to go to."""
    return max(stride, columns) if rows == 1 else stride


def _refusal(name: str, status: int) -> DeviceError:
    return DeviceError(f"cuBLAS refused {name}", found=_STATUS.get(status, f"status {status}"))


def _declare(library: ctypes.CDLL, name: str, arguments: list[Any]) -> Any:
    """A function object of our own, so that scikit-cuda's declarations stay as they are."""
    try:
        function = library[name]
    except AttributeError:
        raise DeviceError("this libcublas lacks a function", expected=name, remedy=REMEDY) from None
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function


def find_library() -> tuple[ctypes.CDLL, str]:
    """libcublas, and who found it.

    Raises    DeviceError: there is none
    """
    # Whatever keeps a package of 2019 from being imported, there is another way.
    with contextlib.suppress(Exception):
        return _scikit_cuda_library()
    library = _open("libcublas")
    if library is None:
        raise DeviceError("libcublas isn't there, which does the matrix products", remedy=REMEDY)
    return library, "name"


def _open(stem: str) -> ctypes.CDLL | None:
    """A CUDA library under any of the names it goes by: the loader's path, NVIDIA's wheels, the toolkit."""
    names = [f"{stem}.so.{major}" for major in _MAJORS] + [f"{stem}.so"]
    paths = [folder / name for folder in _library_folders() for name in names]
    for name in names + [str(path) for path in paths if path.is_file()]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _library_folders() -> list[Path]:
    folders = [
        lib for path in sys.path for lib in sorted(Path(path or ".").glob("nvidia/*/lib"), reverse=True)
    ]
    folders += [Path(compiler).resolve().parent.parent / "lib64" for compiler in nvcc.candidates()]
    return [*folders, Path("/usr/local/cuda/lib64")]


def _scikit_cuda_library() -> tuple[ctypes.CDLL, str]:
    with _as_in_2019(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from skcuda import __version__, cublas
    return cublas._libcublas, f"scikit-cuda {__version__}"


@contextlib.contextmanager
def _as_in_2019() -> Iterator[None]:
    """What scikit-cuda 0.5.3 expects: pkg_resources, np.typeDict, libraries whose name has no version."""
    original = ctypes.cdll.LoadLibrary

    def load_library(name: str) -> ctypes.CDLL:
        library = _open(name.removesuffix(".so")) if name.endswith(".so") else None
        return library or original(name)

    old_resources = sys.modules.get("pkg_resources")
    resources: Any = types.ModuleType("pkg_resources")
    resources.declare_namespace = lambda _: None
    resources.require = lambda _: [types.SimpleNamespace(version="0.5.3")]
    sys.modules["pkg_resources"] = resources
    scalar_types: Any = np
    has_type_dict = hasattr(np, "typeDict")
    if not has_type_dict:
        scalar_types.typeDict = {code: np.dtype(code).type for code in np.typecodes["All"]}
    loader: Any = ctypes.cdll
    loader.LoadLibrary = load_library
    try:
        yield
    finally:
        del loader.LoadLibrary
        if not has_type_dict:
            del scalar_types.typeDict
        if old_resources is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = old_resources
