"""Checks of our CudaDevice under the real PyCUDA: two GPUs used in turn, refusals before the driver is asked.

Run with the stand-in first on the loader's path and SIMGPU_DEVICES=2: tests/test_cuda_device.py does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minicnn import kernels  # noqa: E402
from minicnn.device.cuda import CudaDevice  # noqa: E402
from minicnn.device.cuda_driver import Driver  # noqa: E402
from minicnn.errors import DeviceError  # noqa: E402
from minicnn.step import Kernel, View  # noqa: E402
from tools.cuda_contract import KERNELS, Memory, expect, gemms, numbers  # noqa: E402


def check_a_synchronised_gpu_is_the_threads(device: CudaDevice, other: CudaDevice) -> None:
    values = numbers(100)
    with Memory(device, x=values, y=np.zeros_like(values)) as memory:
        (step,) = kernels.launch(
            Kernel(file=KERNELS, entry="twice"),
            grid=(1, 1, 1),
            block=(128, 1, 1),
            x=View(tensor="x"),
            y=View(tensor="y"),
            n=100,
        )
        action = device.launch(step, memory.address)
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


def check_refusals_before_the_driver(device: CudaDevice, other: CudaDevice) -> None:
    columns = numbers(4, 6)[:, ::2]
    with Memory(device, x=numbers(24)) as memory:
        pointer = memory.pointers["x"]
        expect(ValueError, "C-contiguous", lambda: device.upload(pointer, columns))
        expect(ValueError, "C-contiguous", lambda: device.download(pointer, columns))
    older = Driver()
    older._functions["graph_launch"] = None  # as in a driver that lacks it
    expect(DeviceError, "too old", lambda: older.call("graph_launch", 0, 0))


def main() -> None:
    device, other = CudaDevice(0), CudaDevice(1)
    check_a_synchronised_gpu_is_the_threads(device, other)
    check_what_is_made_belongs_to_its_gpu(device, other)
    check_refusals_before_the_driver(device, other)
    other.close()
    device.close()
    print("fine")


if __name__ == "__main__":
    main()
