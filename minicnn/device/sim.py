"""The simulated GPU as a device: the PTX that nvcc emitted, interpreted on the CPU (minicnn/sim), with
nothing of NVIDIA's but nvcc. Slow; every access is checked and everything is counted.

A fault (out of bounds, a race, an uninitialised read) is a DeviceError that names kernel, block, thread and
source line. Memory that nobody wrote holds NaN.

Not here  times (`elapsed_us` is NaN: `counters` and `counted` instead); half-precision products: refused;
          the GPU's rounding of TF32 products (they are computed in float32)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from minicnn.device import host_fft, nvcc
from minicnn.device.base import Action, Address, Device, DeviceInfo
from minicnn.device.base import Event as AnyEvent
from minicnn.errors import BuildError, DeviceError
from minicnn.sim import library
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, Launch, Step, View

COMPUTE_CAPABILITY = 80
MEMORY_BYTES = 4 << 30
ALIGNMENT = 256


class SimEvent:
    """What was counted up to here."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}


class SimDevice(Device):
    """Actions have run when their call returns.

    Raises    BuildError: no C++ compiler for the simulator
    """

    def __init__(self) -> None:
        self._library = library.load()
        self._machine: int = self._library.sim_create()
        self._memory: dict[int, np.ndarray] = {}  # pointer -> its bytes
        self._modules: dict[tuple[str, nvcc.Defines], int] = {}

    @property
    def info(self) -> DeviceInfo:
        compiler = nvcc.find()
        return DeviceInfo(
            kind="sim",
            name="simulated GPU",
            architecture=f"sm_{COMPUTE_CAPABILITY}",
            memory_bytes=MEMORY_BYTES,
            versions={"nvcc": compiler.version} if compiler else {},
        )

    # --- memory

    def alloc(self, nbytes: int) -> int:
        used = sum(block.size for block in self._memory.values())
        if used + nbytes > MEMORY_BYTES:
            sentence = "the simulated GPU has not that much memory left"
            raise DeviceError(sentence, expected=f"{nbytes} B", found=f"{MEMORY_BYTES - used} B")
        whole = np.full(max(nbytes, 1) + ALIGNMENT, 0xFF, np.uint8)
        start = -whole.ctypes.data % ALIGNMENT
        block = whole[start : start + max(nbytes, 1)]
        pointer = block.ctypes.data
        self._library.sim_register(self._machine, pointer, block.size)
        self._memory[pointer] = block
        return pointer

    def free(self, pointer: int) -> None:
        self._library.sim_unregister(self._machine, pointer)
        del self._memory[pointer]

    def upload(self, pointer: int, array: np.ndarray) -> None:
        self._bytes(pointer, array.nbytes)[:] = _bytes_of(array)

    def download(self, pointer: int, array: np.ndarray) -> None:
        _bytes_of(array)[:] = self._bytes(pointer, array.nbytes)

    def _bytes(self, pointer: int, nbytes: int) -> np.ndarray:
        """A window into the allocation that holds these bytes."""
        for start, block in self._memory.items():
            if start <= pointer and pointer + nbytes <= start + block.size:
                return block[pointer - start : pointer - start + nbytes]
        raise DeviceError("a transfer that leaves its allocation", found=f"{nbytes} B at {pointer:#x}")

    # --- kernels

    def build(self, kernels: Iterable[Kernel]) -> None:
        wanted = {(k.file, k.defines) for k in kernels} - set(self._modules)
        with ThreadPoolExecutor() as pool:  # nvcc is a process of its own
            texts = list(pool.map(lambda key: nvcc.ptx(key[0], key[1], COMPUTE_CAPABILITY), wanted))
        for key, text in zip(wanted, texts, strict=True):
            module = self._library.sim_load(self._machine, text)
            if not module:
                raise BuildError("the simulator can't read a kernel's PTX", file=key[0], found=self._fault())
            self._modules[key] = module

    def launch(self, step: Launch, address: Address) -> Action:
        self.build([step.kernel])
        module = self._modules[step.kernel.file, step.kernel.defines]
        values = [0 if v is None else address(v) if isinstance(v, View) else v for _, v in step.arguments]
        packed = struct.pack("@" + step.format, *values)
        shape = (library.Extent(*step.grid), library.Extent(*step.block), step.shared_bytes)
        entry = step.kernel.entry.encode()

        def action() -> None:
            status = self._library.sim_launch(self._machine, module, entry, *shape, packed, len(packed))
            self._check("the simulated GPU reports a fault", status, step)

        return action

    def _check(self, sentence: str, status: int, step: Step | None = None) -> None:
        if status:
            raise DeviceError(sentence, operator=step, found=self._fault())

    def _fault(self) -> str:
        kind = library.KINDS[self._library.sim_last_fault_kind(self._machine)]
        return f"{kind}: {self._library.sim_last_fault(self._machine).decode()}"

    # --- the other steps

    def gemm(self, step: Gemm, address: Address) -> Action:
        if step.precision not in ("fp32", "tf32"):
            raise DeviceError("a precision that the simulated GPU lacks", operator=step, found=step.precision)
        a, b, c = address(step.a), address(step.b), address(step.c)

        def action() -> None:
            left = self._matrices(a, step.batch, step.stride_a, step.m, step.k, step.lda, step.transpose_a)
            right = self._matrices(b, step.batch, step.stride_b, step.k, step.n, step.ldb, step.transpose_b)
            target = self._matrices(c, step.batch, step.stride_c, step.m, step.n, step.ldc, False)
            product = np.float32(step.alpha) * (left @ right)
            target[...] = product + np.float32(step.beta) * target if step.beta else product

        return action

    def _matrices(
        self, pointer: int, batch: int, stride: int, rows: int, columns: int, ld: int, transposed: bool
    ) -> np.ndarray:
        """op(matrix) of each batch, (batch, rows, columns); stored with `ld` elements from row to row."""
        stored_rows, stored_columns = (columns, rows) if transposed else (rows, columns)
        reach = (batch - 1) * stride + (stored_rows - 1) * ld + stored_columns
        flat = self._bytes(pointer, 4 * max(reach, 0)).view(np.float32)
        shape, strides = (batch, stored_rows, stored_columns), (4 * stride, 4 * ld, 4)
        found = np.lib.stride_tricks.as_strided(flat, shape, strides)
        return found.swapaxes(1, 2) if transposed else found

    def fft(self, step: Fft, address: Address) -> Action:
        return partial(host_fft.transform, step, self._array, address(step.source), address(step.target))

    def _array(self, pointer: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self._bytes(pointer, nbytes).view(dtype).reshape(shape)

    def copy(self, step: Copy, address: Address) -> Action:
        source, target = address(step.source), address(step.target)

        def action() -> None:
            self._bytes(target, step.nbytes)[:] = self._bytes(source, step.nbytes)

        return action

    def fill(self, step: Fill, address: Address) -> Action:
        target = address(step.target)

        def action() -> None:
            self._bytes(target, step.nbytes).view(np.uint32)[:] = step.pattern

        return action

    # --- counts in place of times

    def counters(self) -> dict[str, int]:
        """All that was counted since the device was opened, by sim.h's names."""
        return library.counters(self._library, self._machine)

    def counted(self, first: SimEvent, second: SimEvent) -> dict[str, int]:
        """What was counted between two recorded events."""
        return {name: count - first.counters[name] for name, count in second.counters.items()}

    def event(self) -> SimEvent:
        return SimEvent()

    def record(self, event: AnyEvent) -> Action:
        assert isinstance(event, SimEvent)

        def action() -> None:
            event.counters = self.counters()

        return action

    def elapsed_us(self, first: AnyEvent, second: AnyEvent) -> float:
        return math.nan

    def capture(self, actions: Sequence[Action]) -> Action:
        actions = tuple(actions)

        def replay() -> None:
            for action in actions:
                action()

        return replay

    def sync(self) -> None:
        """Nothing is ever underway."""

    def close(self) -> None:
        if self._machine:
            for module in self._modules.values():
                self._library.sim_unload(self._machine, module)
            self._modules.clear()
            for pointer in list(self._memory):
                self.free(pointer)
            self._library.sim_destroy(self._machine)
            self._machine = 0


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The array's own memory as bytes."""
    if not array.flags.c_contiguous:
        raise ValueError("upload and download want a C-contiguous array")
    return array.reshape(-1).view(np.uint8)
