"""The BLAS that numpy carries: its cblas_sgemm as a pointer, and its number of threads.

Its own threads spin and fight the pool's (two-thread OpenBLAS took 24 ms instead of 1.1 with another process
on the machine), so while a host device is open it runs on one thread, and products are split over the pool
instead.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass, field

# How each build decorates the names: (prefix, suffix, 64-bit integers); numpy's own wheels first.
_SPELLINGS = (("scipy_", "64_", True), ("scipy_", "", False), ("", "64_", True), ("", "", False))


@dataclass(frozen=True, kw_only=True)
class Blas:
    """`sgemm` is the address of a cblas_sgemm, 0 where no BLAS was found."""

    name: str = "none (built-in product)"
    sgemm: int = 0
    has_64_bit_integers: bool = False
    threads_functions: tuple = field(default=(None, None), repr=False)  # get, set

    def set_threads(self, count: int) -> int:
        """Sets the number of threads and returns what it was (0: this BLAS can't be asked)."""
        get, set_ = self.threads_functions
        if get is None or set_ is None:
            return 0
        before = get()
        if before != count:
            set_(count)
        return before


def find_blas() -> Blas:
    """Looks for cblas_sgemm in what numpy itself is linked with: not in any other BLAS of the process."""
    library = _numpy_library()
    if library is None:
        return Blas()
    for prefix, suffix, has_64_bit_integers in _SPELLINGS:
        sgemm = _symbol(library, f"{prefix}cblas_sgemm{suffix}")
        if sgemm is None:
            continue
        get = _symbol(library, f"{prefix}openblas_get_num_threads{suffix}") or _symbol(
            library, "MKL_Get_Max_Threads"
        )
        set_ = _symbol(library, f"{prefix}openblas_set_num_threads{suffix}") or _symbol(
            library, "MKL_Set_Num_Threads"
        )
        config = _symbol(library, f"{prefix}openblas_get_config{suffix}")
        name = "cblas"
        if config is not None:
            config.restype = ctypes.c_char_p
            name = config().decode(errors="replace").strip()
        return Blas(
            name=name,
            sgemm=ctypes.cast(sgemm, ctypes.c_void_p).value or 0,
            has_64_bit_integers=has_64_bit_integers,
            threads_functions=(get, set_),
        )
    return Blas()


def _numpy_library() -> ctypes.CDLL | None:
    for module in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        try:
            return ctypes.CDLL(importlib.import_module(module).__file__)
        except (ImportError, OSError):
            continue
    return None


def _symbol(library: ctypes.CDLL, name: str):
    """dlsym looks in the library's dependencies too."""
    return getattr(library, name, None)
