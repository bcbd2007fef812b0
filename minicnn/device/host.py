"""The host device: the same .cu files on the CPU's threads, products through numpy's BLAS.

Everything has run when a call returns. An action is an array of commands (cuda/host_runtime.h) that one C
call runs; capturing actions joins their arrays.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from minicnn.device import host_fft
from minicnn.device.base import Action, Address, Device, DeviceInfo
from minicnn.device.host_blas import find_blas
from minicnn.device.host_build import Check, build, cpu_facts, cpu_level, libraries_of, runtime_library
from minicnn.errors import BuildError, DeviceError, MemoryLimitError
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, Launch

_SMALL_BYTES = 64 << 20  # asked for without looking how much memory is free


class _Extent(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int32), ("y", ctypes.c_int32), ("z", ctypes.c_int32)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_char_p),
        ("grid", _Extent),
        ("block", _Extent),
        ("shared_bytes", ctypes.c_uint64),
    ]


class _Gemm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "c")),
        *(
            (name, ctypes.c_int64)
            for name in ("m", "n", "k", "lda", "ldb", "ldc", "batch", "stride_a", "stride_b", "stride_c")
        ),
        *((name, ctypes.c_float) for name in ("alpha", "beta")),
        *((name, ctypes.c_int32) for name in ("transpose_a", "transpose_b")),
    ]


class _Copy(ctypes.Structure):
    _fields_ = [("source", ctypes.c_void_p), ("target", ctypes.c_void_p), ("nbytes", ctypes.c_uint64)]


class _Fill(ctypes.Structure):
    _fields_ = [("target", ctypes.c_void_p), ("nbytes", ctypes.c_uint64), ("pattern", ctypes.c_uint32)]


class _Stamp(ctypes.Structure):
    _fields_ = [("nanoseconds", ctypes.c_void_p)]


class _Work(ctypes.Union):
    _fields_ = [("launch", _Launch), ("gemm", _Gemm), ("copy", _Copy), ("fill", _Fill), ("stamp", _Stamp)]


class _Command(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("work", _Work)]


_LAUNCH, _GEMM, _COPY, _FILL, _STAMP = range(5)
_ORDERS = {"forward": 0, "reverse": 1, "random": 2}


@dataclass(frozen=True, kw_only=True, eq=False)
class HostEvent:
    """A place for the monotonic clock's nanoseconds; 0 until recorded."""

    nanoseconds: ctypes.c_int64 = field(default_factory=ctypes.c_int64)


class _Commands:
    """An action: commands that one C call runs. `keep` holds what they point to."""

    def __init__(self, device: HostDevice, commands: Sequence[_Command], keep: Sequence[object]):
        self.commands = (_Command * len(commands))(*commands)
        self.keep = tuple(keep)
        self._device = device

    def __call__(self) -> None:
        self._device._run(self.commands)


class HostDevice(Device):
    """The CPU as a device.

    `threads`: CPU threads that share a launch, the caller's among them; None: one for each core that this
    process may use. `check`: a build that looks for faults in kernels, on one thread (host_build.Check).

    Raises    DeviceError: an unknown processor, no threads; BuildError: no compiler where one is needed
    """

    def __init__(self, threads: int | None = None, check: Check | None = None):
        self._handle: int | None = None
        self._level = cpu_level()
        self._check = check
        self._threads = (threads or usable_cores()) if check is None else 1
        if self._threads < 1:
            raise DeviceError("a number of threads that can't be", found=threads, accepted="1 or more")
        library = runtime_library(self._level, check)
        self._runtime = _open_library(build([library])[library])
        _declare(self._runtime)
        self._blas = find_blas()
        self._blas_threads = self._blas.set_threads(1)
        self._handle = self._runtime.mc_open(self._threads, self._blas.sgemm, self._blas.has_64_bit_integers)
        if not self._handle:
            raise DeviceError("the host device can't start its threads", found=self._threads)
        if check is not None:
            self._runtime.mc_check(self._handle, _ORDERS[check.order], check.seed)
        self._entries: dict[Kernel, int] = {}
        self._kernel_libraries: dict[Path, ctypes.CDLL] = {}
        self._blocks: dict[int, int] = {}  # pointer: bytes

    @cached_property
    def info(self) -> DeviceInfo:
        return DeviceInfo(
            kind="host",
            name=processor_name(),
            architecture=self._level,
            memory_bytes=_memory_bytes("MemTotal"),
            threads=self._threads,
            versions={
                "compiler": self._runtime.mc_compiler().decode(),
                "blas": self._blas.name,
                "numpy": np.__version__,
            },
        )

    def alloc(self, nbytes: int) -> int:
        pointer = None
        if nbytes < _SMALL_BYTES or nbytes <= _memory_bytes("MemAvailable"):
            pointer = self._runtime.mc_allocate(nbytes)
        if not pointer:
            raise MemoryLimitError(
                "not enough memory",
                expected=f"{nbytes} bytes",
                found=f"{_memory_bytes('MemAvailable')} bytes available",
            )
        self._blocks[pointer] = nbytes
        return pointer

    def free(self, pointer: int) -> None:
        del self._blocks[pointer]
        self._runtime.mc_free(pointer)

    def upload(self, pointer: int, array: np.ndarray) -> None:
        ctypes.memmove(pointer, _contiguous(array).ctypes.data, array.nbytes)

    def download(self, pointer: int, array: np.ndarray) -> None:
        ctypes.memmove(_contiguous(array).ctypes.data, pointer, array.nbytes)

    def view(
        self, pointer: int, shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None
    ) -> np.ndarray:
        """The memory at `pointer` as an array, without a copy. Units    strides: elements"""
        itemsize = np.dtype(dtype).itemsize
        steps = None if strides is None else tuple(s * itemsize for s in strides)
        if steps is None or 0 in shape:
            nbytes = math.prod(shape) * itemsize
        else:
            nbytes = itemsize + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
        memory = (ctypes.c_char * nbytes).from_address(pointer)
        return np.ndarray(tuple(shape), dtype, buffer=memoryview(memory), strides=steps if nbytes else None)

    def build(self, kernels: Iterable[Kernel]) -> None:
        missing = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._entries]
        libraries = libraries_of(missing, self._level, self._check)
        paths = build(libraries.values())
        for kernel, library in libraries.items():
            path = paths[library]
            if path not in self._kernel_libraries:
                self._kernel_libraries[path] = _open_library(path)
            entry = getattr(self._kernel_libraries[path], f"minicnn_entry_{kernel.entry}", None)
            if entry is None:
                raise BuildError("the kernel file has no such entry", file=kernel.file, expected=kernel.entry)
            self._entries[kernel] = ctypes.cast(entry, ctypes.c_void_p).value or 0

    def launch(self, step: Launch, address: Address) -> Action:
        self.build([step.kernel])
        values = (
            v if isinstance(v, (int, float)) else 0 if v is None else address(v) for _, v in step.arguments
        )
        arguments = struct.pack("@" + step.format, *values)
        work = _Launch(
            self._entries[step.kernel],
            arguments,
            _Extent(*step.grid),
            _Extent(*step.block),
            step.shared_bytes,
        )
        return self._command(_LAUNCH, launch=work)

    def gemm(self, step: Gemm, address: Address) -> Action:
        integers = (
            step.m,
            step.n,
            step.k,
            step.lda,
            step.ldb,
            step.ldc,
            step.batch,
            step.stride_a,
            step.stride_b,
            step.stride_c,
        )
        scalars = (step.alpha, step.beta, step.transpose_a, step.transpose_b)
        return self._command(
            _GEMM, gemm=_Gemm(address(step.a), address(step.b), address(step.c), *integers, *scalars)
        )

    def fft(self, step: Fft, address: Address) -> Action:
        return partial(host_fft.transform, step, self.view, address(step.source), address(step.target))

    def copy(self, step: Copy, address: Address) -> Action:
        return self._command(_COPY, copy=_Copy(address(step.source), address(step.target), step.nbytes))

    def fill(self, step: Fill, address: Address) -> Action:
        return self._command(_FILL, fill=_Fill(address(step.target), step.nbytes, step.pattern))

    def event(self) -> HostEvent:
        return HostEvent()

    def record(self, event: object) -> Action:
        slot = _event(event).nanoseconds
        return self._command(_STAMP, keep=(slot,), stamp=_Stamp(ctypes.addressof(slot)))

    def elapsed_us(self, first: object, second: object) -> float:
        return (_event(second).nanoseconds.value - _event(first).nanoseconds.value) / 1e3

    def host_ns(self, event: object) -> int | None:
        return _event(event).nanoseconds.value  # CLOCK_MONOTONIC, as Python's perf_counter

    def capture(self, actions: Sequence[Action]) -> Action:
        """One array of all commands; where Python functions (fft) stand between, as many as it takes."""
        parts: list[Action] = []
        run: list[_Commands] = []

        def close_run() -> None:
            if run:
                parts.append(_Commands(self, [c for action in run for c in action.commands], run))
                run.clear()

        for action in actions:
            if isinstance(action, _Commands):
                run.append(action)
            else:
                close_run()
                parts.append(action)
        close_run()
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def sync(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        if self._handle is None:
            return
        for pointer in list(self._blocks):
            self.free(pointer)
        self._runtime.mc_close(self._handle)
        self._handle = None
        if self._blas_threads:
            self._blas.set_threads(self._blas_threads)

    def _command(self, kind: int, keep: Sequence[object] = (), **work: ctypes.Structure) -> _Commands:
        return _Commands(self, [_Command(kind, _Work(**work))], (*keep, *work.values()))

    def _run(self, commands: ctypes.Array[_Command]) -> None:
        if self._handle is None:
            raise DeviceError("the host device is closed")
        failed = self._runtime.mc_run(self._handle, commands, len(commands))
        if failed:
            raise DeviceError(
                self._runtime.mc_error(self._handle).decode(), operator=self._name_of(commands[failed - 1])
            )

    def _name_of(self, command: _Command) -> str | None:
        if command.kind != _LAUNCH:
            return None
        return next(
            (str(kernel) for kernel, entry in self._entries.items() if entry == command.work.launch.entry),
            None,
        )


@dataclass(frozen=True)
class _Sequence:
    parts: tuple[Action, ...]

    def __call__(self) -> None:
        for part in self.parts:
            part()


def processor_name() -> str:
    facts = cpu_facts()
    return facts.get("model name") or f"{cpu_level()} processor {facts.get('CPU part', '')}".strip()


def usable_cores() -> int:
    """Cores that this process may use: of its affinity, hyper-threads once; at most its group's share."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        share = math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no control group, or "max"
        share = len(cores)
    return max(1, min(len(cores), share))


def _memory_bytes(line: str) -> int:
    text = Path("/proc/meminfo").read_text()
    return next(int(row.split()[1]) * 1024 for row in text.splitlines() if row.startswith(line + ":"))


def _contiguous(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        raise DeviceError(
            "an array that isn't contiguous can't be copied", found=array.strides, accepted="C order"
        )
    return array


def _event(event: object) -> HostEvent:
    if not isinstance(event, HostEvent):
        raise DeviceError("an event of another device", found=event)
    return event


def _open_library(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            "a compiled library can't be loaded", file=path, found=error, remedy="delete it"
        ) from None


def _declare(runtime: ctypes.CDLL) -> None:
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[object, tuple[object, ...]]] = {
        "mc_open": (pointer, (integer, pointer, integer)),
        "mc_close": (None, (pointer,)),
        "mc_check": (None, (pointer, integer, ctypes.c_uint64)),
        "mc_run": (ctypes.c_int64, (pointer, pointer, ctypes.c_size_t)),
        "mc_error": (ctypes.c_char_p, (pointer,)),
        "mc_compiler": (ctypes.c_char_p, ()),
        "mc_allocate": (pointer, (ctypes.c_uint64,)),
        "mc_free": (None, (pointer,)),
    }
    for name, (result, arguments) in signatures.items():
        function: Callable = getattr(runtime, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
