"""Memory that host and device share: copied, or seen by both.

explicit   the device's own upload and download: on a GPU by way of pinned halves, on the host a copy
pinned     page-locked memory, copied to the GPU by one transfer each way
mapped     the device reads and writes the host's memory, across the bus on a GPU; on the host: no copy at all
managed    pages that the driver moves to whoever touches them
Source     CUDA C++ Programming Guide, "Page-Locked Host Memory", "Unified Memory"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.device.base import Device

KINDS = {"host": ("explicit", "mapped"), "cuda": ("explicit", "pinned", "mapped", "managed")}


@dataclass(frozen=True, kw_only=True)
class Shared:
    """`array`: bytes as the host sees them; `pointer`: where the device does."""

    array: np.ndarray
    pointer: int
    upload: Callable[[], None]
    download: Callable[[], None]
    close: Callable[[], None]


def share(device: Any, kind: str, nbytes: int) -> Shared:
    """Memory of this kind; `kind` is one of KINDS[device.info.kind]."""
    if kind == "explicit":
        return _explicit(device, nbytes)
    if device.info.kind == "host":
        array = np.empty(nbytes, np.uint8)
        return Shared(
            array=array, pointer=array.ctypes.data, upload=_nothing, download=_nothing, close=_nothing
        )
    return {"pinned": _pinned, "mapped": _mapped, "managed": _managed}[kind](device, nbytes)


def _nothing() -> None:
    pass


def _explicit(device: Device, nbytes: int) -> Shared:
    array, pointer = np.empty(nbytes, np.uint8), device.alloc(nbytes)
    return Shared(
        array=array,
        pointer=pointer,
        upload=lambda: device.upload(pointer, array),
        download=lambda: device.download(pointer, array),
        close=lambda: device.free(pointer),
    )


def _pinned(device: Any, nbytes: int) -> Shared:
    cuda, pointer = device._pycuda, device.alloc(nbytes)
    with device._active():
        array = cuda.pagelocked_empty(nbytes, np.uint8)

    def upload() -> None:
        device._select()
        cuda.memcpy_htod_async(pointer, array, device._stream)

    def download() -> None:
        device._select()
        cuda.memcpy_dtoh_async(array, pointer, device._stream)
        device.sync()

    def close() -> None:
        device.free(pointer)
        _release(device, array)

    return Shared(array=array, pointer=pointer, upload=upload, download=download, close=close)


def _mapped(device: Any, nbytes: int) -> Shared:
    cuda = device._pycuda
    with device._active():
        array = cuda.pagelocked_empty(nbytes, np.uint8, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
        pointer = int(array.base.get_device_pointer())
    return Shared(
        array=array,
        pointer=pointer,
        upload=_nothing,
        download=device.sync,
        close=lambda: _release(device, array),
    )


def _managed(device: Any, nbytes: int) -> Shared:
    cuda = device._pycuda
    with device._active():
        array = cuda.managed_empty(nbytes, np.uint8, mem_flags=cuda.mem_attach_flags.GLOBAL)
    return Shared(
        array=array,
        pointer=array.ctypes.data,
        upload=_nothing,
        download=device.sync,
        close=lambda: _release(device, array),
    )


def _release(device: Any, array: np.ndarray) -> None:
    """What PyCUDA owns is freed while it knows the context."""
    with device._active():
        array.base.free()  # type: ignore[union-attr]
