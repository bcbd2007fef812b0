"""Types of tensor elements as kernels know them: the macro that makes a kernel one for float16 or int64."""

from __future__ import annotations

import numpy as np

CODES = {  # as in cuda/elements.cuh
    "float32": 0, "float16": 1, "int32": 2, "int64": 3, "bool": 4, "uint8": 5, "int8": 6, "float64": 7,
}  # fmt: skip
FLOATS = ("float32", "float16")  # both are computed in float32
INTEGERS = ("int32", "int64")
UNIT_ROUNDOFF = 2.0**-24
HALF_ROUNDOFF = 2.0**-11


def defines(dtype: str, macro: str = "ELEMENT") -> tuple[tuple[str, int], ...]:
    """Macros of a kernel that is to work on this type; none for float32, which needs no build of its own."""
    return ((macro, CODES[dtype]),) if CODES[dtype] else ()


def storage_bound(exact: np.ndarray, dtype: np.dtype) -> np.ndarray | float:
    """What storing a number that was computed in float32 may lose: nothing, or float16's rounding."""
    if dtype != np.float16:
        return 0.0
    return HALF_ROUNDOFF * np.abs(exact) * (1 + 2.0**-10) + 2.0**-25


def stored(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers that round beyond a floating-point type's range are infinite there."""
    limits = {"float16": 65520.0, "float32": 2.0**128 - 2.0**103}
    if dtype.name not in limits:
        return exact
    return np.where(np.abs(exact) >= limits[dtype.name], np.copysign(np.inf, exact), exact)
