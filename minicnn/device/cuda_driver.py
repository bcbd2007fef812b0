"""What PyCUDA doesn't wrap of the CUDA driver, by ctypes: events with a handle, graphs, the current context.

PyCUDA's own context stack is left empty between calls (a context left on it aborts the process at exit): what
is current is set in the driver, as NVIDIA's runtime does it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicnn.errors import DeviceError

LIBRARY = "libcuda.so.1"
EXTERNAL = 1  # during capture: a node that records the event, not just a dependency
_CAPTURE_THREAD_LOCAL = 1
_COMPUTE_CAPABILITY = (75, 76)  # the device attributes of its major and minor part
_VOID = ctypes.c_void_p

# What is called, with its arguments. The first name that the driver has is taken: older ones lack suffixes.
_PROTOTYPES: dict[str, tuple[tuple[str, ...], list[Any]]] = {
    "init": (("cuInit",), [ctypes.c_uint]),
    "version": (("cuDriverGetVersion",), [_VOID]),
    "device_count": (("cuDeviceGetCount",), [_VOID]),
    "device_name": (("cuDeviceGetName",), [_VOID, ctypes.c_int, ctypes.c_int]),
    "device_memory": (("cuDeviceTotalMem_v2",), [_VOID, ctypes.c_int]),
    "device_attribute": (("cuDeviceGetAttribute",), [_VOID, ctypes.c_int, ctypes.c_int]),
    "error_text": (("cuGetErrorString",), [ctypes.c_int, _VOID]),
    "current_context": (("cuCtxGetCurrent",), [_VOID]),
    "set_context": (("cuCtxSetCurrent",), [_VOID]),
    "event_create": (("cuEventCreate",), [_VOID, ctypes.c_uint]),
    "event_destroy": (("cuEventDestroy_v2",), [_VOID]),
    "event_record": (("cuEventRecord",), [_VOID, _VOID]),
    "event_record_flags": (("cuEventRecordWithFlags",), [_VOID, _VOID, ctypes.c_uint]),
    "event_synchronize": (("cuEventSynchronize",), [_VOID]),
    "event_elapsed": (("cuEventElapsedTime_v2", "cuEventElapsedTime"), [_VOID, _VOID, _VOID]),
    "capture_begin": (("cuStreamBeginCapture_v2",), [_VOID, ctypes.c_int]),
    "capture_end": (("cuStreamEndCapture",), [_VOID, _VOID]),
    "graph_instantiate": (("cuGraphInstantiateWithFlags",), [_VOID, _VOID, ctypes.c_ulonglong]),
    "graph_launch": (("cuGraphLaunch",), [_VOID, _VOID]),
    "graph_destroy": (("cuGraphDestroy",), [_VOID]),
    "graph_exec_destroy": (("cuGraphExecDestroy",), [_VOID]),
}


class Driver:
    """The loaded library. Each call raises DeviceError with the driver's own words when it fails.

    Raises    OSError: there is no such library
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._functions = {name: self._bind(*prototype) for name, prototype in _PROTOTYPES.items()}

    def _bind(self, names: tuple[str, ...], arguments: list[Any]) -> Any:
        for name in names:
            try:
                function = self._library[name]
            except AttributeError:
                continue
            function.argtypes, function.restype = arguments, ctypes.c_int
            return function
        return None

    def function(self, name: str) -> Callable[..., int]:
        """The bare function, returning a status: for the few calls on the hot path."""
        function = self._functions[name]
        if function is None:
            missing = _PROTOTYPES[name][0][0]
            raise DeviceError("the NVIDIA driver is too old", expected=missing, remedy="a newer driver")
        return function

    def call(self, name: str, *arguments: object) -> None:
        self.check(name, self.function(name)(*arguments))

    def check(self, name: str, status: int) -> None:
        if status:
            what = _PROTOTYPES[name][0][0]
            raise DeviceError(f"the CUDA driver refused {what}", found=self.error_text(status))

    def error_text(self, status: int) -> str:
        text = ctypes.c_char_p()
        self.function("error_text")(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"

    def handle(self, name: str, *arguments: object) -> int:
        """Calls a function that writes a handle through its first argument, and returns the handle."""
        result = _VOID()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def elapsed_ms(self, first: int, second: int) -> float:
        result = ctypes.c_float()
        self.call("event_elapsed", ctypes.byref(result), first, second)
        return result.value

    def number(self, name: str, *arguments: object) -> int:
        """Calls a function that writes an int through its first argument."""
        result = ctypes.c_int()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value


class Event:
    """A point in time on a stream. Gone with its last reference, or with the device's `close`."""

    def __init__(self, driver: Driver):
        self._driver = driver
        self.handle = 0
        self.handle = driver.handle("event_create", 0)

    def close(self) -> None:
        if self.handle:
            self._driver.function("event_destroy")(self.handle)
            self.handle = 0

    __del__ = close


class Graph:
    """What `enqueue` puts on a stream, captured, ready to launch on it again. Gone with its last reference.

    Raises    DeviceError: the driver can't capture it
    """

    def __init__(self, driver: Driver, stream: int, enqueue: Callable[[], None]):
        self._driver = driver
        self._stream = stream
        self._handle = 0
        driver.call("capture_begin", stream, _CAPTURE_THREAD_LOCAL)
        graph = _VOID()
        try:
            enqueue()
        finally:
            ended = driver.function("capture_end")(stream, ctypes.byref(graph))
        driver.check("capture_end", ended)
        try:
            self._handle = driver.handle("graph_instantiate", graph, 0)
        finally:
            driver.function("graph_destroy")(graph)
        self._launch = driver.function("graph_launch")

    def __call__(self) -> None:
        if status := self._launch(self._handle, self._stream):
            self._driver.check("graph_launch", status)

    def close(self) -> None:
        if self._handle:
            self._driver.function("graph_exec_destroy")(self._handle)
            self._handle = 0

    __del__ = close


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver lists it."""

    index: int
    name: str
    compute_capability: int  # 90 for 9.0
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """What can be known without PyCUDA. `failure` is why there is no driver, or why it doesn't start."""

    is_present: bool = False
    failure: str = ""
    cuda_version: tuple[int, int] = (0, 0)
    release: str = ""  # "580.65.06", empty where the kernel module doesn't say
    gpus: tuple[Gpu, ...] = ()


def facts() -> DriverFacts:
    """Asks the driver what it is and which GPUs it has; makes no context."""
    try:
        driver = Driver()
    except OSError as error:
        return DriverFacts(failure=str(error))
    version = (0, 0)
    try:
        version = decode_version(driver.number("version"))
        driver.call("init", 0)
        gpus = tuple(_gpu(driver, index) for index in range(driver.number("device_count")))
    except DeviceError as error:
        failure = str(error.facts.get("found", error.sentence))
        return DriverFacts(is_present=True, failure=failure, cuda_version=version, release=release())
    return DriverFacts(is_present=True, cuda_version=version, release=release(), gpus=gpus)


def _gpu(driver: Driver, index: int) -> Gpu:
    name = ctypes.create_string_buffer(256)
    driver.call("device_name", name, len(name), index)
    memory = ctypes.c_size_t()
    driver.call("device_memory", ctypes.byref(memory), index)
    major, minor = (driver.number("device_attribute", attribute, index) for attribute in _COMPUTE_CAPABILITY)
    return Gpu(
        index=index,
        name=name.value.decode(),
        compute_capability=major * 10 + minor,
        memory_bytes=memory.value,
    )


def decode_version(number: int) -> tuple[int, int]:
    """CUDA's way of writing 12.4: 12040."""
    return number // 1000, number % 1000 // 10


def release() -> str:
    """The driver package's own number, "580.65.06", or "" where the kernel module doesn't say."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((w for w in words if w.count(".") in (1, 2) and w.replace(".", "").isdigit()), "")
