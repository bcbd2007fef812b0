"""The host device's command lists, memory and products."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from host_cases import KERNELS, PATHS, randoms, zeros
from minicnn import kernels
from minicnn.device.host import HostDevice
from minicnn.device.host_blas import Blas
from minicnn.errors import DeviceError
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, View


@pytest.fixture(scope="module", params=[1, 2])
def device(request):
    device = HostDevice(threads=request.param)
    yield device
    device.close()


class Memory:
    """Named arrays on a device, seen as numpy arrays."""

    def __init__(self, device: HostDevice, **arrays: np.ndarray):
        self.pointers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
        self.arrays = {
            name: device.view(self.pointers[name], a.shape, a.dtype.name) for name, a in arrays.items()
        }
        for name, array in arrays.items():
            device.upload(self.pointers[name], np.ascontiguousarray(array))

    def address(self, view: View) -> int:
        return self.pointers[view.tensor] + view.byte_offset

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def test_captured_actions_run_in_order(device):
    n = 100_000
    memory = Memory(device, x=np.arange(n, dtype=np.float32), y=zeros(n), z=zeros(n))
    x, y, z = (View(tensor=name) for name in "xyz")
    scale = Kernel(file=str(KERNELS / "good.cu"), entry="scale")
    events = [device.event() for _ in range(4)]
    (double,) = kernels.launch(
        scale, grid=(391, 1, 1), block=(256, 1, 1), x=x, y=y, n=n, step=1, offset=0, a=2.0, b=0.0
    )
    (add_one,) = kernels.launch(
        scale, grid=(391, 1, 1), block=(256, 1, 1), x=z, y=x, n=n, step=1, offset=0, a=1.0, b=1.0
    )
    steps = [
        device.record(events[0]),
        device.prepare(double, memory.address),
        device.record(events[1]),
        device.prepare(Copy(source=y, target=z, nbytes=4 * n), memory.address),
        device.prepare(add_one, memory.address),
        device.record(events[2]),
        device.prepare(
            Fill(target=View(tensor="y", byte_offset=4), nbytes=8, pattern=0x40400000), memory.address
        ),
        device.record(events[3]),
    ]
    graph = device.capture(steps)
    graph()
    graph()
    device.sync()
    first = np.arange(n) * 2 + 1
    assert np.array_equal(memory["x"], first * 2 + 1)
    assert np.array_equal(memory["y"][:5], [first[0] * 2, 3, 3, first[3] * 2, first[4] * 2])
    times = [device.elapsed_us(events[0], event) for event in events]
    assert times == sorted(times) and times[-1] > 0


def test_large_copies_and_fills_reach_every_byte(device):
    n = (3 << 20) + 17
    memory = Memory(device, x=np.arange(n, dtype=np.int32), y=np.zeros(n, np.int32))
    device.copy(Copy(source=View(tensor="x"), target=View(tensor="y"), nbytes=4 * n), memory.address)()
    assert np.array_equal(memory["y"], memory["x"])
    device.fill(Fill(target=View(tensor="y"), nbytes=4 * n, pattern=0xFFFFFFFF), memory.address)()
    assert (memory["y"] == -1).all()


@pytest.mark.parametrize("extents", [(8, 8), (7, 5), (1, 9)])
@pytest.mark.parametrize("channels", [1, 6])
def test_fft_there_and_back(device, extents, channels):
    rows, columns = extents
    x = randoms(3, rows, columns, channels)
    spectrum = np.zeros((3, rows, columns // 2 + 1, channels), np.complex64)
    memory = Memory(device, x=x, s=spectrum, y=zeros(3, rows, columns, channels))
    sizes = {"extents": extents, "batch": 3, "channels": channels}
    there = Fft(source=View(tensor="x"), target=View(tensor="s"), **sizes)
    back = Fft(source=View(tensor="s"), target=View(tensor="y"), **sizes, inverse=True)
    device.capture([device.prepare(there, memory.address), device.prepare(back, memory.address)])()
    np.testing.assert_allclose(memory["s"], np.fft.rfft2(x.astype(np.float64), axes=(1, 2)), atol=1e-5)
    np.testing.assert_allclose(memory["y"], x * rows * columns, atol=1e-4)


def test_memory_is_aligned_and_bounded(device):
    for nbytes in (1, 100, 5 << 20):
        pointer = device.alloc(nbytes)
        assert pointer % 256 == 0
        device.free(pointer)
    with pytest.raises(DeviceError, match="not enough memory"):
        device.alloc(1 << 50)


def test_non_contiguous_arrays_are_refused(device):
    pointer = device.alloc(64)
    with pytest.raises(DeviceError, match="contiguous"):
        device.upload(pointer, np.zeros((4, 8), np.float32)[:, ::2])
    device.free(pointer)


def test_view_with_strides(device):
    memory = Memory(device, x=np.arange(60, dtype=np.float32))
    view = device.view(memory.pointers["x"], (2, 3, 4), "float32", strides=(30, 1, 7))
    assert np.array_equal(
        view, [[[30 * a + b + 7 * c for c in range(4)] for b in range(3)] for a in range(2)]
    )


def test_closing_twice_and_using_after():
    device = HostDevice(threads=2)
    action = device.record(device.event())
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        action()


def test_a_forked_process_has_threads_again():
    code = (
        "import os, sys; import host_cases as t\n"
        "device = t.HostDevice(threads=2); case = t.GOOD['histogram']()\n"
        "t.assert_right(case, t.run(device, 'histogram', case))\n"
        "child = os.fork()\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "t.assert_right(case, t.run(device, 'histogram', case))\n"
        "if child == 0: os._exit(len(os.listdir('/proc/self/task')) != before + 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | PATHS, timeout=60).returncode == 0


# (batch, m, n, k); odd, one row, one column, wide, tall, deep, empty depth
PRODUCTS = [
    (1, 1, 1, 1), (1, 7, 13, 5), (1, 1, 1000, 257), (3, 1, 65, 31), (1, 300, 1, 129), (1, 17, 900, 33),
    (1, 500, 19, 64), (5, 33, 29, 31), (2, 130, 140, 150), (1, 64, 64, 2000), (64, 4, 4, 3), (1, 3, 4, 0),
]  # fmt: skip


def assert_product(
    device: HostDevice, extents: tuple[int, int, int, int], transpose_a: bool, transpose_b: bool, beta: float
) -> None:
    batch, m, n, k = extents
    random = np.random.default_rng(5)

    def stored(rows: int, columns: int, extra: int) -> np.ndarray:
        """Matrices whose rows lie `extra` elements further apart, batches 3 elements; NaN between."""
        whole = np.full((batch, rows * (columns + extra) + 3), np.nan, np.float32)
        inner = whole[:, : rows * (columns + extra)].reshape(batch, rows, columns + extra)
        inner[:, :, :columns] = random.uniform(-1, 1, (batch, rows, columns))
        return whole

    def matrices(whole: np.ndarray, rows: int, columns: int, extra: int) -> np.ndarray:
        return whole[:, : rows * (columns + extra)].reshape(batch, rows, columns + extra)[:, :, :columns]

    shape_a, shape_b = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    a, b, c = stored(*shape_a, 2), stored(*shape_b, 1), stored(m, n, 5)
    if beta == 0:
        c[...] = np.nan
    memory = Memory(device, a=a, b=b, c=c)
    step = Gemm(
        m=m, n=n, k=k, a=View(tensor="a"), b=View(tensor="b"), c=View(tensor="c"),
        lda=shape_a[1] + 2, ldb=shape_b[1] + 1, ldc=n + 5, transpose_a=transpose_a, transpose_b=transpose_b,
        alpha=0.5, beta=beta, batch=batch, stride_a=a.shape[1], stride_b=b.shape[1], stride_c=c.shape[1],
    )  # fmt: skip
    device.gemm(step, memory.address)()
    left, right = matrices(a, *shape_a, 2).astype(np.float64), matrices(b, *shape_b, 1).astype(np.float64)
    left = left.transpose(0, 2, 1) if transpose_a else left
    right = right.transpose(0, 2, 1) if transpose_b else right
    before = matrices(c, m, n, 5).astype(np.float64) if beta else np.zeros((batch, m, n))
    exact = 0.5 * (left @ right) + beta * before
    bound = 4 * np.sqrt(k + 1) * 2**-24 * (abs(left) @ abs(right) + abs(beta * before))
    assert (abs(matrices(memory["c"], m, n, 5) - exact) <= bound).all()
    between = memory["c"][:, : m * (n + 5)].reshape(batch, m, n + 5)[:, :, n:]
    assert np.array_equal(
        between.view(np.int32), c[:, : m * (n + 5)].reshape(batch, m, n + 5)[:, :, n:].view(np.int32)
    )


@pytest.mark.parametrize("extents", PRODUCTS, ids=str)
def test_products(device, extents):
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            for beta in (0.0, 1.0, -0.75):
                assert_product(device, extents, transpose_a, transpose_b, beta)


def test_products_without_a_blas(monkeypatch):
    monkeypatch.setattr("minicnn.device.host.find_blas", Blas)
    device = HostDevice(threads=2)
    assert "built-in" in device.info.versions["blas"]
    for extents in PRODUCTS:
        for transpose_a, transpose_b, beta in (
            (False, False, 0.0),
            (True, False, -0.75),
            (False, True, 1.0),
            (True, True, 0.0),
        ):
            assert_product(device, extents, transpose_a, transpose_b, beta)
    device.close()


def test_blas_is_found_and_its_threads_given_back():
    device = HostDevice(threads=1)
    blas = device._blas
    assert blas.sgemm
    assert blas.set_threads(1) == 1
    device.close()
