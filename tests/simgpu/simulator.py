"""The simulator's C interface for tests: arrays in, arrays out, a fault as an exception."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache as remember

import numpy as np
from simgpu import build

from minicnn import cache
from minicnn.sim import build as sim_build

KINDS = (
    "fine parse unsupported out_of_bounds misaligned uninitialised barrier collective race async_copy "
    "endless launch trap"
).split()


class KernelInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "parameter_bytes",
            "parameter_count",
            "static_shared_bytes",
            "local_bytes",
            "max_threads",
        )
    ]


class SimulatorFault(Exception):
    def __init__(self, kind: str, sentence: str):
        super().__init__(sentence)
        self.kind = kind


@remember
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(sim_build.build(cache.folder("simgpu"))))
    void, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    extent = ctypes.c_uint * 3
    lib.sim_create.restype = void
    lib.sim_destroy.argtypes = [void]
    lib.sim_set_option.argtypes = [void, text, ctypes.c_int64]
    lib.sim_register.argtypes = [void, ctypes.c_uint64, size]
    lib.sim_unregister.argtypes = [void, ctypes.c_uint64]
    lib.sim_load.argtypes, lib.sim_load.restype = [void, text], void
    lib.sim_unload.argtypes = [void, void]
    lib.sim_kernel_count.argtypes = [void]
    lib.sim_kernel_name.argtypes, lib.sim_kernel_name.restype = [void, ctypes.c_int], text
    lib.sim_kernel.argtypes = [void, void, text, ctypes.POINTER(KernelInfo)]
    lib.sim_variable.argtypes = [void, void, text, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(size)]
    lib.sim_launch.argtypes = [void, void, text, extent, extent, ctypes.c_uint, void, size]
    lib.sim_last_fault.argtypes, lib.sim_last_fault.restype = [void], text
    lib.sim_last_fault_kind.argtypes = [void]
    lib.sim_counter_name.restype = text
    lib.sim_counter.argtypes, lib.sim_counter.restype = [void, ctypes.c_int], ctypes.c_uint64
    lib.sim_reset_counters.argtypes = [void]
    return lib


class Simulator:
    """One machine with one module: a file of tests/simgpu/kernels, or PTX text."""

    def __init__(self, name: str = "", *, text: str = "", architecture: str = "sm_80", **options: int):
        self.lib = library()
        self.machine = self.lib.sim_create()
        for option, value in options.items():
            self._check(self.lib.sim_set_option(self.machine, option.encode(), value))
        source = text or build.ptx(name, architecture)
        self.module = self.lib.sim_load(self.machine, source.encode())
        if not self.module:
            self._check(self.lib.sim_last_fault_kind(self.machine))

    def _check(self, code: int) -> None:
        if code:
            raise SimulatorFault(KINDS[code], self.lib.sim_last_fault(self.machine).decode())

    def option(self, name: str, value: int) -> None:
        self._check(self.lib.sim_set_option(self.machine, name.encode(), value))

    def info(self, kernel: str) -> KernelInfo:
        info = KernelInfo()
        self._check(self.lib.sim_kernel(self.machine, self.module, kernel.encode(), ctypes.byref(info)))
        return info

    def kernels(self) -> list[str]:
        count = self.lib.sim_kernel_count(self.module)
        return [self.lib.sim_kernel_name(self.module, k).decode() for k in range(count)]

    def variable(self, name: str, dtype: type) -> np.ndarray:
        """A module variable as an array that shares its memory."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        code = self.lib.sim_variable(
            self.machine, self.module, name.encode(), ctypes.byref(address), ctypes.byref(size)
        )
        self._check(code)
        return np.frombuffer((ctypes.c_char * size.value).from_address(address.value), dtype)

    @contextmanager
    def _registered(self, arrays: Sequence[np.ndarray]) -> Iterator[None]:
        addresses = {array.ctypes.data: array.nbytes for array in arrays}
        for address, size in addresses.items():
            self._check(self.lib.sim_register(self.machine, address, size))
        try:
            yield
        finally:
            fault = self.lib.sim_last_fault(self.machine), self.lib.sim_last_fault_kind(self.machine)
            for address in addresses:
                self.lib.sim_unregister(self.machine, address)
            self.last_fault = fault

    def run(
        self, kernel: str, *arguments: object, grid: object = 1, block: object = 32, shared: int = 0
    ) -> None:
        """Launches. Arrays of rank 1 and more are passed by address, numpy scalars by value."""
        arrays = [a for a in arguments if isinstance(a, np.ndarray) and a.ndim]
        packed = pack(arguments)
        with self._registered(arrays):
            code = self.lib.sim_launch(
                self.machine,
                self.module,
                kernel.encode(),
                extent(grid),
                extent(block),
                shared,
                packed,
                len(packed),
            )
        if code:
            raise SimulatorFault(KINDS[code], self.last_fault[0].decode())

    def counters(self) -> dict[str, int]:
        count = self.lib.sim_counter_count()
        return {
            self.lib.sim_counter_name(k).decode(): self.lib.sim_counter(self.machine, k) for k in range(count)
        }

    def reset(self) -> None:
        self.lib.sim_reset_counters(self.machine)

    def close(self) -> None:
        self.lib.sim_unload(self.machine, self.module)
        self.lib.sim_destroy(self.machine)


def extent(size: object) -> ctypes.Array[ctypes.c_uint]:
    given = [size] if isinstance(size, int) else list(size)  # type: ignore[call-overload]
    return (ctypes.c_uint * 3)(*(given + [1, 1])[:3])


def pack(arguments: Sequence[object]) -> bytes:
    """Parameters as a kernel lays them out: each aligned to its size, structs to their widest field."""
    out = b""
    for argument in arguments:
        if isinstance(argument, np.ndarray) and argument.ndim:
            value, align = np.uint64(argument.ctypes.data).tobytes(), 8
        else:
            scalar = np.asarray(argument)
            value = scalar.tobytes()
            fields = scalar.dtype.fields
            align = scalar.dtype.alignment if fields else scalar.itemsize
            if scalar.dtype.metadata:
                align = scalar.dtype.metadata["align"]
        out += b"\0" * (-len(out) % align) + value
    return out
