"""What measuring itself can resolve on a device, and how fast the device can be at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from minicnn import kernels
from minicnn.device.base import Action, Device
from minicnn.errors import BuildError, DeviceError
from minicnn.step import Copy, Fill, Kernel, Launch, View

BRACKETS = 200
ROOF_TRIES = 7
PARTS = (256, 1)  # of the work that finds a roof: a small one first
PATIENCE_S = 0.02  # for the small one
COPY_BYTES = {"host": 64 << 20}  # beyond most caches; others take OTHER_COPY_BYTES
OTHER_COPY_BYTES = 256 << 20
FMA_WIDTH = 16  # floats of one accumulator in calibrate.cu
# Accumulators a thread: as many as the registers hold beside two factors, to hide an addition's latency.
ACCUMULATORS = {"x86-64-v2": 3, "x86-64-v3": 6, "x86-64-v4": 10}
OTHER_ACCUMULATORS = 4
FMA_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The floor under a layer's time, and the roofs over its rates.

    bracket_us         two events with nothing between: median; the spread is the distance of its quartiles
    null_kernel_us     two events around a kernel that does nothing
    clock_step_us      the smallest difference between two events that isn't zero
    copy_gb_per_s      of a copy too large for most caches, bytes read and written: the best of a few
    fma_gflop_per_s    multiply-adds in registers, float32: the best of a few
    """

    bracket_us: float = np.nan
    bracket_spread_us: float = np.nan
    null_kernel_us: float = np.nan
    clock_step_us: float = np.nan
    copy_gb_per_s: float = np.nan
    fma_gflop_per_s: float = np.nan


def calibrate(device: Device) -> Calibration:
    """A fraction of a second; all NaN where a device has no clock. Raises    DeviceError, BuildError"""
    empty = _times(device, [], BRACKETS)
    if np.isnan(empty).any():
        return Calibration()
    low, middle, high = np.percentile(empty, (25, 50, 75))
    with _memory(device, 256) as address:
        (null,) = kernels.launch(
            Kernel(file="calibrate.cu", entry="null_kernel"),
            grid=(1, 1, 1),
            block=(1, 1, 1),
            y=View(tensor="y"),
        )
        device.build([null.kernel])
        bare = _times(device, [device.prepare(null, address)], BRACKETS)
    steps = empty[empty > 0]
    return Calibration(
        bracket_us=float(middle),
        bracket_spread_us=float(high - low),
        null_kernel_us=float(np.median(bare)),
        clock_step_us=float(steps.min()) if steps.size else np.nan,
        copy_gb_per_s=_copy_roof(device),
        fma_gflop_per_s=_fma_roof(device),
    )


@contextmanager
def cache_flush(device: Device) -> Iterator[Callable[[], None]]:
    """Yields what empties the device's caches, by writing more than they hold."""
    nbytes = _large(device)
    with _memory(device, nbytes) as address:
        yield device.capture([device.prepare(Fill(target=View(tensor="y"), nbytes=nbytes), address)])


def _copy_roof(device: Device) -> float:
    most = _large(device)
    try:
        with _memory(device, 2 * most) as address:

            def copied(part: int) -> tuple[Action, float]:
                nbytes = most // part // 256 * 256
                copy = Copy(source=View(tensor="y"), target=View(tensor="y", byte_offset=most), nbytes=nbytes)
                return device.prepare(copy, address), 2.0 * nbytes

            return _roof(device, copied)
    except DeviceError:  # so little memory that the copy doesn't fit
        return np.nan


def _fma_roof(device: Device) -> float:
    with _memory(device, 4 * FMA_WIDTH) as address:

        def added(part: int) -> tuple[Action, float]:
            launch = _fma_launch(device, part)
            device.build([launch.kernel])
            accumulators = dict(launch.kernel.defines)["ACCUMULATORS"]
            threads, steps = launch.grid[0] * launch.block[0], dict(launch.arguments)["steps"]
            assert isinstance(steps, int)
            return device.prepare(launch, address), 2.0 * threads * steps * FMA_WIDTH * accumulators

        try:
            return _roof(device, added)
        except BuildError:  # installed for a processor of another kind, and no compiler here
            return np.nan


def _roof(device: Device, work: Callable[[int], tuple[Action, float]]) -> float:
    """Thousands of millions of units a second, the best of a few; `work(part)`: 1 / part of all, its units.

    A small part first: where that takes long already (a simulated GPU), it has to do.
    """
    for part in PARTS:
        action, units = work(part)
        start = device.clock_ns()
        times = _times(device, [action], ROOF_TRIES)[1:]
        if (device.clock_ns() - start) / 1e9 > PATIENCE_S:
            break
    fastest = float(times.min())
    return units / fastest / 1e3 if fastest > 0 else np.nan


def _fma_launch(device: Device, part: int) -> Launch:
    is_host = device.info.kind == "host"
    accumulators = ACCUMULATORS.get(device.info.architecture, OTHER_ACCUMULATORS)
    kernel = Kernel(file="calibrate.cu", entry="fma_peak", defines=(("ACCUMULATORS", accumulators),))
    (launch,) = kernels.launch(
        kernel,
        grid=(max((16 * device.info.threads if is_host else 2048) // part, 1), 1, 1),
        block=(8 if is_host else 256, 1, 1),
        y=View(tensor="y"),
        factor=0.5,
        steps=max(FMA_STEPS // part, 1),
    )
    return launch


def _large(device: Device) -> int:
    wanted = COPY_BYTES.get(device.info.kind, OTHER_COPY_BYTES)
    return min(wanted, device.info.memory_bytes // 16 // 256 * 256)


@contextmanager
def _memory(device: Device, nbytes: int) -> Iterator[Callable[[View], int]]:
    pointer = device.alloc(nbytes)
    try:
        yield lambda view: pointer + view.byte_offset
    finally:
        device.sync()
        device.free(pointer)


def _times(device: Device, actions: Sequence[Action], count: int) -> np.ndarray:
    """Microseconds between an event before and one after the actions, `count` times."""
    first, last = device.event(), device.event()
    program = device.capture([device.record(first), *actions, device.record(last)])
    times = np.empty(count)
    for i in range(count):
        program()
        device.sync()
        times[i] = device.elapsed_us(first, last)
    return times
