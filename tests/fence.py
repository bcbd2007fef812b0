"""Host memory whose end is one: a byte further is a segmentation fault. A simulated GPU notices by itself."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from unittest import mock

from minicnn.device.base import Device

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NO_ACCESS = 0
_FAILED = ctypes.c_void_p(-1).value


@contextlib.contextmanager
def fenced(device: Device) -> Iterator[Device]:
    """The device; if it is the host's, it gives memory right before a page that nobody may touch.

    Raises    MemoryError
    """
    if device.info.kind != "host":
        yield device
        return
    regions: dict[int, tuple[int, int]] = {}

    def alloc(nbytes: int) -> int:
        pages = -(-nbytes // mmap.PAGESIZE)
        size = (pages + 1) * mmap.PAGESIZE
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
        if start == _FAILED:
            raise MemoryError(f"{size} bytes")
        end = start + pages * mmap.PAGESIZE
        assert _LIBC.mprotect(end, mmap.PAGESIZE, _NO_ACCESS) == 0
        regions[end - nbytes] = start, size
        return int(end - nbytes)

    def free(pointer: int) -> None:
        _LIBC.munmap(*regions.pop(pointer))

    with mock.patch.object(device, "alloc", alloc), mock.patch.object(device, "free", free):
        yield device
