"""What every device can do. Work arrives as steps (data) and becomes actions, prepared once."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicnn.errors import DeviceError
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, Launch, Step, View

Action = Callable[[], None]  # enqueues prepared work; on the host it has run when the call returns
Address = Callable[[View], int]  # where a view lies in the device's memory
Event = object


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """What a record says of the device it ran on."""

    kind: str  # "host", "cuda", "sim"
    name: str  # "AMD EPYC ...", "NVIDIA H200"
    architecture: str  # "x86-64-v4", "sm_90"
    memory_bytes: int
    threads: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)  # compiler, driver, toolkit, BLAS


class Device(ABC):
    """In-order execution on one stream. Pointers are integers; memory is 256-byte aligned.

    Not thread-safe: one caller at a time.
    """

    @property
    @abstractmethod
    def info(self) -> DeviceInfo: ...

    @abstractmethod
    def alloc(self, nbytes: int) -> int:
        """A pointer to `nbytes` bytes of any content. Raises DeviceError when there isn't that much."""

    @abstractmethod
    def free(self, pointer: int) -> None: ...

    @abstractmethod
    def upload(self, pointer: int, array: np.ndarray) -> None:
        """C-contiguous `array` to the device; returns when the array may change again."""

    @abstractmethod
    def download(self, pointer: int, array: np.ndarray) -> None:
        """From the device into C-contiguous `array`, after all enqueued work."""

    @abstractmethod
    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compiles or loads these kernels, so that `launch` finds them. Raises BuildError."""

    @abstractmethod
    def launch(self, step: Launch, address: Address) -> Action: ...

    @abstractmethod
    def gemm(self, step: Gemm, address: Address) -> Action: ...

    @abstractmethod
    def fft(self, step: Fft, address: Address) -> Action: ...

    @abstractmethod
    def copy(self, step: Copy, address: Address) -> Action: ...

    @abstractmethod
    def fill(self, step: Fill, address: Address) -> Action: ...

    @abstractmethod
    def event(self) -> Event:
        """A point in time to be, for `record` and `elapsed_us`."""

    @abstractmethod
    def record(self, event: Event) -> Action: ...

    @abstractmethod
    def elapsed_us(self, first: Event, second: Event) -> float:
        """Microseconds between two recorded events, after `sync`."""

    def clock_ns(self) -> int:
        """The caller's clock, by which a run is timed from outside."""
        return time.perf_counter_ns()

    def host_ns(self, event: Event) -> int | None:
        """A recorded event on the caller's clock; None where the device's clock is another."""
        return None

    def clocks(self) -> Mapping[str, float]:
        """Clocks as they are now, where the device says; each name ends in its unit."""
        return {}

    def is_throttled(self) -> bool | None:
        """Whether the device holds itself back now, by heat or power; None where it doesn't say."""
        return None

    def energy_meter(self) -> Any | str:
        """A `minicnn.energy.Meter` of the device itself, or why there is none."""
        return "this device has no meter"

    def resources(self, step: Launch) -> str:
        """What a launch takes of the device, in words; "" where nothing is known."""
        return ""

    def profiler_range(self, name: str) -> tuple[Sequence[Action], Sequence[Action]]:
        """Opens and closes a range of this name in an attached profiler; nothing where none is."""
        return (), ()

    @abstractmethod
    def capture(self, actions: Sequence[Action]) -> Action:
        """The actions as one (a CUDA graph; one C call on the host), events included."""

    @abstractmethod
    def sync(self) -> None:
        """Returns when all enqueued work is done. Raises DeviceError if any of it failed."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back. Idempotent."""

    def prepare(self, step: Step, address: Address) -> Action:
        """The action of any step but a HostCall, which is the executor's."""
        if isinstance(step, Launch):
            return self.launch(step, address)
        if isinstance(step, Gemm):
            return self.gemm(step, address)
        if isinstance(step, Fft):
            return self.fft(step, address)
        if isinstance(step, Copy):
            return self.copy(step, address)
        if isinstance(step, Fill):
            return self.fill(step, address)
        raise DeviceError("a step that no device runs", found=step)
