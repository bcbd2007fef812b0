"""Checks of our CudaDevice under the real PyCUDA: two GPUs used in turn, refusals before the driver is asked.

Run with the stand-in first on the loader's path and SIMGPU_DEVICES=2: tests/test_cuda_device.py does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minicnn import kernels  # noqa: E402
from minicnn.device.cuda import CudaDevice  # noqa: E402
from minicnn.device.cuda_driver import Driver  # noqa: E402
from minicnn.errors import DeviceError  # noqa: E402
from minicnn.step import Fft, Kernel, Launch, View  # noqa: E402
from tools.cuda_contract import KERNELS, Memory, expect, gemms, numbers  # noqa: E402


def twice(n: int) -> Launch:
    (step,) = kernels.launch(
        Kernel(file=KERNELS, entry="twice"),
        grid=(1, 1, 1),
        block=(128, 1, 1),
        x=View(tensor="x"),
        y=View(tensor="y"),
        n=n,
    )
    return step


def in_a_thread_of_its_own(work: Callable[[], object]) -> None:
    """Where no GPU is the thread's yet."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def current_context() -> int:
    return Driver().handle("current_context")


def check_a_synchronised_gpu_is_the_threads(device: CudaDevice, other: CudaDevice) -> None:
    values = numbers(100)
    with Memory(device, x=values, y=np.zeros_like(values)) as memory:
        action = device.launch(twice(100), memory.address)
        other.sync()
        device.sync()
        action()
        assert (memory.get("y") == 2 * values).all()


def check_what_is_made_belongs_to_its_gpu(device: CudaDevice, other: CudaDevice) -> None:
    """Whichever GPU is the thread's when an event or a product is made."""
    other.sync()
    event = device.event()
    a, b, c = (numbers(256, seed=seed) for seed in (4, 5, 6))
    with Memory(device, a=a, b=b, c=c) as memory:
        other.sync()
        multiply = device.gemm(next(iter(gemms())), memory.address)
        device.sync()
        device.record(event)()
        multiply()
        device.sync()
    expect(DeviceError, "cuEventRecord", other.record(event))


def check_steps_are_prepared_in_any_thread(device: CudaDevice, other: CudaDevice) -> None:
    values = numbers(4, 4)
    spectrum = np.zeros((4, 3), np.complex64)
    transform = Fft(source=View(tensor="x"), target=View(tensor="z"), extents=(4, 4), batch=1)
    with Memory(device, x=values, y=np.zeros_like(values), z=spectrum) as memory:
        steps = (twice(16), next(iter(gemms())), transform)
        for step in steps:
            device.prepare(step, lambda view: memory.pointers.get(view.tensor, memory.pointers["x"]))

        def work() -> None:
            actions = [device.prepare(step, memory.address) for step in (steps[0], transform)]
            for action in actions:
                action()
            assert (memory.get("y") == 2 * values).all()
            assert np.abs(memory.get("z") - np.fft.rfft2(values)).max() < 1e-5

        in_a_thread_of_its_own(work)
        device.sync()


def check_another_gpu_may_have_been_the_threads(device: CudaDevice, other: CudaDevice) -> None:
    """Each of what a device does finds its own GPU again."""
    values = numbers(2, 8)  # a plan that isn't there yet
    x, y = np.zeros_like(values), np.zeros_like(values)
    with Memory(device, x=x, y=y, z=np.zeros((2, 5), np.complex64)) as memory:
        transform = Fft(source=View(tensor="x"), target=View(tensor="z"), extents=(2, 8), batch=1)
        other.sync()
        device.upload(memory.pointers["x"], values)
        other.sync()
        action = device.fft(transform, memory.address)
        device.sync()
        action()
        other.sync()
        assert np.abs(memory.get("z") - np.fft.rfft2(values)).max() < 1e-5


def check_a_closed_device_is_no_threads(device: CudaDevice, other: CudaDevice) -> None:
    """Though another holds the same GPU's context."""
    second = CudaDevice(0)
    second.sync()
    assert current_context()
    second.close()
    assert not current_context(), "a context is left current"


def check_a_fault_comes_before_a_capture(other: CudaDevice) -> None:
    """Last of all: the GPU's context is of no use after it."""
    with Memory(other, x=numbers(16)) as memory:
        kernel = Kernel(file=KERNELS, entry="beyond")
        (step,) = kernels.launch(kernel, grid=(1, 1, 1), block=(1, 1, 1), x=View(tensor="x"), n=1 << 40)
        expect(DeviceError, "reported a fault", lambda: other.capture([other.launch(step, memory.address)]))
        memory.pointers.clear()


def check_a_fault_waits_for_close(other: CudaDevice) -> None:
    """Nobody has waited for the work: what is freed in its context must not fail one by one."""
    pointer = other.alloc(64)
    kernel = Kernel(file=KERNELS, entry="beyond")
    (step,) = kernels.launch(kernel, grid=(1, 1, 1), block=(1, 1, 1), x=View(tensor="x"), n=1 << 40)
    other.gemm(next(iter(gemms())), lambda view: pointer)
    other.launch(step, lambda view: pointer)()
    other.close()


def check_refusals_before_the_driver(device: CudaDevice, other: CudaDevice) -> None:
    columns = numbers(4, 6)[:, ::2]
    with Memory(device, x=numbers(24)) as memory:
        pointer = memory.pointers["x"]
        expect(ValueError, "C-contiguous", lambda: device.upload(pointer, columns))
        expect(ValueError, "C-contiguous", lambda: device.download(pointer, columns))
        product = device.gemm(next(iter(gemms())), lambda view: pointer)  # of matrices larger than that
        device.sync()
        expect(DeviceError, "libcublas refused", product)
    older = Driver()
    older._functions["graph_launch"] = None  # as in a driver that lacks it
    expect(DeviceError, "too old", lambda: older.call("graph_launch", 0, 0))


def main() -> None:
    device, other = CudaDevice(0), CudaDevice(1)
    check_a_synchronised_gpu_is_the_threads(device, other)
    check_what_is_made_belongs_to_its_gpu(device, other)
    check_steps_are_prepared_in_any_thread(device, other)
    check_another_gpu_may_have_been_the_threads(device, other)
    check_a_closed_device_is_no_threads(device, other)
    check_refusals_before_the_driver(device, other)
    check_a_fault_comes_before_a_capture(other)
    other.close()
    check_a_fault_waits_for_close(CudaDevice(1))
    device.close()
    print("fine")


if __name__ == "__main__":
    main()
