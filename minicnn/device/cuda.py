"""The CUDA GPU, through PyCUDA: primary context, one non-blocking stream, launches packed once and run often.

PyCUDA is imported when a device is made, never before: it needs the NVIDIA driver's library to be imported.
What it doesn't wrap is in cuda_driver.py, matrix products in cublas.py, Fourier transforms in cufft.py,
compiling in nvcc.py.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np

from minicnn.device import nvcc
from minicnn.device.base import Action, Address, Device, DeviceInfo
from minicnn.device.base import Event as AnyEvent
from minicnn.device.cublas import WORKSPACE_BYTES, Cublas
from minicnn.device.cuda_driver import EXTERNAL, Driver, Event, Graph, decode_version, release
from minicnn.device.cuda_import import load_pycuda
from minicnn.device.cufft import Cufft
from minicnn.device.nvml import Nvml
from minicnn.errors import BuildError, DeviceError, MemoryLimitError
from minicnn.occupancy import occupancy
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, Launch, Step

STAGE_BYTES = 4 << 20  # each of two pinned halves: one is filled while the other is on its way
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: doesn't wait for the default stream, which others may use
SHARED_WITHOUT_ASKING = 48 << 10


class CudaDevice(Device):
    """GPU number `index`, as the driver counts them.

    Actions run on the GPU that the thread last uploaded to or synchronised: with two GPUs, upload first.

    Raises    DeviceError: with the remedy, when the GPU can't be used
    """

    def __init__(self, index: int = 0):
        self._is_closed = True
        self._pycuda = load_pycuda()
        count = self._pycuda.Device.count()
        if not 0 <= index < count:
            present = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise DeviceError("there is no such GPU", found=f"cuda:{index}", accepted=present)
        self._driver = Driver()
        self._gpu = self._pycuda.Device(index)
        major, minor = self._gpu.compute_capability()
        self.compute_capability: int = major * 10 + minor
        self._driver_version = decode_version(self._pycuda.get_driver_version())
        with self._guard("this GPU gives no context"):
            self._context = self._gpu.retain_primary_context()
        self._context_handle: int = self._context.handle
        self._memory: dict[int, Any] = {}
        self._modules: dict[tuple[str, nvcc.Defines], Any] = {}
        self._functions: dict[Kernel, Any] = {}
        self._owned: weakref.WeakSet[Event | Graph] = weakref.WeakSet()
        self._thread = threading.get_ident()
        self._is_capturing = False
        self._cublas: Cublas | None = None
        self._cufft: Cufft | None = None
        self.capture_failure = ""
        with self._active(), self._guard("this GPU gives no stream or no pinned memory"):
            self._stream = self._pycuda.Stream(NON_BLOCKING)
            self._stages = [self._pycuda.pagelocked_empty(STAGE_BYTES, np.uint8) for _ in range(2)]
        self._select()
        self._stage_events = [self.event(), self.event()]
        self._next_stage = 0
        self._is_closed = False

    # --- contexts and errors

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """Around all that makes or frees an object of PyCUDA's: it must know the context, and forget it."""
        self._context.push()
        try:
            yield
        finally:
            self._pycuda.Context.pop()

    def _select(self) -> None:
        """Makes this GPU the calling thread's: another may have been."""
        self._driver.call("set_context", self._context_handle)

    def _deselect(self) -> None:
        if self._driver.handle("current_context") == self._context_handle:
            self._driver.call("set_context", None)

    @contextlib.contextmanager
    def _guard(self, sentence: str, **facts: object) -> Iterator[None]:
        try:
            yield
        except self._pycuda.Error as error:
            raise DeviceError(sentence, found=error, **facts) from None

    @property
    def info(self) -> DeviceInfo:
        versions = {
            "cuda": ".".join(map(str, self._driver_version)),
            "driver": release(),
            "pycuda": self._pycuda_version,
            "nvcc": compiler.version if (compiler := nvcc.find()) else "",
            "cublas": f"{self._cublas.version} by {self._cublas.found_by}" if self._cublas else "",
        }
        return DeviceInfo(
            kind="cuda",
            name=self._gpu.name(),
            architecture=f"sm_{self.compute_capability}",
            memory_bytes=self._gpu.total_memory(),
            versions={name: version for name, version in versions.items() if version},
        )

    @cached_property
    def _pycuda_version(self) -> str:
        from pycuda import VERSION_TEXT

        headers = ".".join(map(str, self._pycuda.get_version()[:2]))
        return f"{VERSION_TEXT} (CUDA {headers})"

    # --- memory

    def alloc(self, nbytes: int) -> int:
        with self._active(), self._guard("the GPU gives no memory"):
            try:
                allocation = self._pycuda.mem_alloc(max(nbytes, 1))
            except self._pycuda.MemoryError:
                free = self._pycuda.mem_get_info()[0]
                sentence = "the GPU has not that much memory left"
                raise MemoryLimitError(sentence, expected=f"{nbytes} B", found=f"{free} B") from None
        pointer = int(allocation)
        self._memory[pointer] = allocation
        return pointer

    def free(self, pointer: int) -> None:
        with self._active(), self._guard("the GPU reported a fault as memory was freed"):
            self._memory.pop(pointer).free()

    def upload(self, pointer: int, array: np.ndarray) -> None:
        self._select()
        source = _bytes_of(array)
        with self._guard("upload to the GPU failed"):
            for start in range(0, len(source), STAGE_BYTES):
                part = source[start : start + STAGE_BYTES]
                stage, event = self._take_stage()
                stage[: len(part)] = part
                self._pycuda.memcpy_htod_async(pointer + start, stage[: len(part)], self._stream)
                self._driver.call("event_record", event.handle, self._stream.handle)

    def download(self, pointer: int, array: np.ndarray) -> None:
        self._select()
        target = _bytes_of(array)
        underway: list[tuple[Event, np.ndarray, np.ndarray]] = []
        with self._guard("download from the GPU failed"):
            for start in range(0, len(target), STAGE_BYTES):
                part = target[start : start + STAGE_BYTES]
                if len(underway) == len(self._stages):
                    self._land(*underway.pop(0))
                stage, event = self._take_stage()
                self._pycuda.memcpy_dtoh_async(stage[: len(part)], pointer + start, self._stream)
                self._driver.call("event_record", event.handle, self._stream.handle)
                underway.append((event, stage, part))
        while underway:
            self._land(*underway.pop(0))

    def _take_stage(self) -> tuple[np.ndarray, Event]:
        """A pinned half whose last copy is done, and the event to record behind the next one."""
        index, self._next_stage = self._next_stage, 1 - self._next_stage
        event = self._stage_events[index]
        self._driver.call("event_synchronize", event.handle)
        return self._stages[index], event

    def _land(self, event: Event, stage: np.ndarray, part: np.ndarray) -> None:
        self._driver.call("event_synchronize", event.handle)
        part[:] = stage[: len(part)]

    # --- kernels

    def build(self, kernels: Iterable[Kernel]) -> None:
        wanted = list(dict.fromkeys(kernels))
        files = list(
            dict.fromkeys((k.file, k.defines) for k in wanted if (k.file, k.defines) not in self._modules)
        )
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # nvcc is a process of its own
            texts = list(pool.map(lambda key: nvcc.ptx(key[0], key[1], self.compute_capability), files))
        with self._active():
            for key, text in zip(files, texts, strict=True):
                self._modules[key] = self._load(key[0], text)
            for kernel in wanted:
                self._functions[kernel] = self._function(kernel)

    def _load(self, file: str, text: bytes) -> Any:
        lowered = nvcc.for_driver(text, self._driver_version)
        try:
            return self._pycuda.module_from_buffer(lowered)
        except self._pycuda.Error as error:
            raise BuildError(
                "the driver refused a kernel's PTX",
                file=file,
                found=error,
                expected=f"sm_{self.compute_capability}",
            ) from None

    def _function(self, kernel: Kernel) -> Any:
        try:
            return self._modules[kernel.file, kernel.defines].get_function(kernel.entry)
        except self._pycuda.Error:
            raise BuildError(
                "the kernel file has no such entry", file=kernel.file, expected=kernel.entry
            ) from None

    def launch(self, step: Launch, address: Address) -> Action:
        if step.kernel not in self._functions:
            self.build([step.kernel])
        function = self._functions[step.kernel]
        self._select()
        self._fit(step, function)
        values = [_plain(value, address) for _, value in step.arguments]
        packed = struct.pack("@" + step.format, *values)
        shape = (step.grid, step.block, packed, step.shared_bytes, self._stream)
        return self._action("the GPU refused a launch", step, function._launch_kernel, *shape)

    def _fit(self, step: Launch, function: Any) -> None:
        """Asks for the shared memory a launch needs, and refuses the launch that this GPU can't do.

        Asking for an attribute also loads the function, which must not happen while a graph is captured.
        """
        attribute = self._pycuda.function_attribute
        threads = step.block[0] * step.block[1] * step.block[2]
        with self._guard("a kernel can't be prepared", operator=step.kernel):
            most = function.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
            if threads > most:
                raise DeviceError(
                    "a block of more threads than this kernel can have",
                    operator=step.kernel,
                    found=threads,
                    accepted=most,
                )
            if step.shared_bytes > SHARED_WITHOUT_ASKING:
                optin = self._gpu.get_attribute(
                    self._pycuda.device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
                )
                limit = optin - function.get_attribute(attribute.SHARED_SIZE_BYTES)
                if step.shared_bytes > limit:
                    raise DeviceError(
                        "more shared memory than this GPU gives a block",
                        operator=step.kernel,
                        found=step.shared_bytes,
                        accepted=limit,
                    )
                asked = function.get_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
                function.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, max(asked, step.shared_bytes))

    # --- the other steps

    def gemm(self, step: Gemm, address: Address) -> Action:
        if self._cublas is None:
            workspace = self._work_area(WORKSPACE_BYTES)
            self._cublas = Cublas(
                stream=self._stream.handle, workspace=workspace, workspace_bytes=WORKSPACE_BYTES
            )
        return self._cublas.gemm(step, a=address(step.a), b=address(step.b), c=address(step.c))

    def fft(self, step: Fft, address: Address) -> Action:
        self._select()
        if self._cufft is None:
            self._cufft = Cufft(stream=self._stream.handle, alloc=self._work_area)
        return self._cufft.transform(step, source=address(step.source), target=address(step.target))

    def _work_area(self, nbytes: int) -> int:
        pointer = self.alloc(nbytes)
        self._select()
        return pointer

    def copy(self, step: Copy, address: Address) -> Action:
        source, target = address(step.source), address(step.target)
        enqueue = self._pycuda.memcpy_dtod_async
        return self._action(
            "the GPU refused a copy", step, enqueue, target, source, step.nbytes, self._stream
        )

    def fill(self, step: Fill, address: Address) -> Action:
        enqueue = self._pycuda.memset_d32_async
        return self._action(
            "the GPU refused a fill",
            step,
            enqueue,
            address(step.target),
            step.pattern,
            step.nbytes // 4,
            self._stream,
        )

    def _action(
        self, sentence: str, step: Step, enqueue: Callable[..., object], *arguments: object
    ) -> Action:
        failure = self._pycuda.Error

        def action() -> None:
            try:
                enqueue(*arguments)
            except failure as error:
                raise DeviceError(sentence, operator=step, found=error) from None

        return action

    # --- time

    def event(self) -> Event:
        self._select()
        event = Event(self._driver)
        self._owned.add(event)
        return event

    def record(self, event: AnyEvent) -> Action:
        assert isinstance(event, Event)
        plain, external = self._driver.function("event_record"), self._driver.function("event_record_flags")
        stream = self._stream.handle

        def action() -> None:
            status = (
                external(event.handle, stream, EXTERNAL)
                if self._is_capturing
                else plain(event.handle, stream)
            )
            if status:
                self._driver.check("event_record", status)

        return action

    def elapsed_us(self, first: AnyEvent, second: AnyEvent) -> float:
        assert isinstance(first, Event) and isinstance(second, Event)
        return self._driver.elapsed_ms(first.handle, second.handle) * 1000

    @cached_property
    def _nvml(self) -> Nvml | None:
        try:
            return Nvml(self._gpu.pci_bus_id())
        except (OSError, LookupError):
            return None

    def clocks(self) -> Mapping[str, float]:
        return self._nvml.clocks() if self._nvml else {}

    def is_throttled(self) -> bool | None:
        return self._nvml.is_throttled() if self._nvml else None

    def energy_meter(self) -> Nvml | str:
        if self._nvml is None:
            return "NVML isn't there, or doesn't know this GPU"
        if self._nvml.energy_uj() is None and self._nvml.power_w() is None:
            return "NVML reads neither energy nor power of this GPU"
        return self._nvml

    def resources(self, step: Launch) -> str:
        attribute, read = self._pycuda.function_attribute, self._functions[step.kernel].get_attribute
        registers, static = read(attribute.NUM_REGS), read(attribute.SHARED_SIZE_BYTES)
        shared = static + step.shared_bytes
        words = f"{registers} registers, {shared} B shared, {read(attribute.LOCAL_SIZE_BYTES)} B local"
        threads = math.prod(step.block)
        with contextlib.suppress(KeyError):  # a GPU that the table of limits doesn't know yet
            held = occupancy(
                self.compute_capability, threads=threads, registers=registers, shared_bytes=shared
            )
            words += f", occupancy {held}"
        return words

    def profiler_range(self, name: str) -> tuple[Sequence[Action], Sequence[Action]]:
        if self._nvtx is None:
            return (), ()
        return (partial(self._nvtx.push_range, name),), (self._nvtx.pop_range,)

    @cached_property
    def _nvtx(self) -> Any:
        """NVTX while a profiler is attached, which says so in the environment; else None."""
        if "NVTX_INJECTION64_PATH" not in os.environ:
            return None
        try:
            return importlib.import_module("nvtx")
        except ImportError:
            return None

    def capture(self, actions: Sequence[Action]) -> Action:
        """The actions as one CUDA graph, or one after the other where the driver can't or a profiler watches.

        `capture_failure` then says why. The actions run once before they are captured, on whatever is in
        memory, so that libraries load what they load at a first call: upload inputs after this.
        """
        actions = tuple(actions)

        def enqueue() -> None:
            for action in actions:
                action()

        if self._nvtx is not None:
            self.capture_failure = "a profiler is attached: its ranges name what runs one after the other"
            return enqueue
        enqueue()
        self.sync()
        self._is_capturing = True
        try:
            graph = Graph(self._driver, self._stream.handle, enqueue)
        except DeviceError as error:
            self.capture_failure = str(error)
            return enqueue
        finally:
            self._is_capturing = False
        self._owned.add(graph)
        return graph

    def sync(self) -> None:
        self._select()
        with self._guard("the GPU reported a fault"):
            self._stream.synchronize()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # After a fault every call on the context fails and nothing can be freed: it goes with the context.
        with contextlib.suppress(self._pycuda.Error), self._active():
            self._stream.synchronize()
            for library in (self._cublas, self._cufft):
                if library:
                    library.close()
            for owned in list(self._owned):
                owned.close()
            self._forget()
        self._deselect()
        # PyCUDA gives a context back in the thread that made it, or not at all.
        if threading.get_ident() == self._thread:
            self._context.detach()
            self._deselect()  # PyCUDA leaves it current
        self._forget()

    def _forget(self) -> None:
        """Drops all objects of PyCUDA's; in a living context that frees what they stand for."""
        self._memory.clear()
        self._functions.clear()
        self._modules.clear()
        self._stages.clear()
        self._stream = None


def _plain(value: object, address: Address) -> object:
    if value is None:
        return 0
    return value if isinstance(value, (int, float)) else address(value)  # type: ignore[arg-type]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The array's own memory as bytes."""
    if not array.flags.c_contiguous:
        raise ValueError("upload and download want a C-contiguous array")
    return array.reshape(-1).view(np.uint8)
