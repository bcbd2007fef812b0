"""The simulator's C interface for tests: arrays in, arrays out, a fault as an exception."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minicnn.sim import library
from minicnn.sim.library import KINDS, KernelInfo
from simgpu import build


class SimulatorFault(Exception):
    def __init__(self, kind: str, sentence: str):
        super().__init__(sentence)
        self.kind = kind


class Simulator:
    """One machine with one module: a file of tests/simgpu/kernels, or PTX text."""

    def __init__(self, name: str = "", *, text: str = "", architecture: str = "sm_80", **options: int):
        self.lib = library.load()
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
        return library.counters(self.lib, self.machine)

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
