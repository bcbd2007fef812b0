"""Arrays as the tests of the simulator need them."""

from __future__ import annotations

import numpy as np


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def aligned(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """An array whose address is a multiple of 256, as a GPU allocation's."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
    raw = np.zeros(size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape)  # type: ignore[call-overload]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    out = aligned(array.shape, array.dtype)
    out[...] = array
    return out


def zeros(count: int = 512, dtype: object = np.float32) -> np.ndarray:
    out = aligned((count,), dtype)
    out[...] = 0
    return out


def rounded_to_tf32(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
