"""The simulated GPU as a device of its own: `--device sim`, without any driver, stand-in or PyCUDA."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import harness
import minicnn
from minicnn.device import nvcc, open_device
from minicnn.device.sim import MEMORY_BYTES, SimDevice
from minicnn.errors import DeviceError
from minicnn.ops.relu import Relu
from minicnn.registry import Problem
from minicnn.step import Copy, Fft, Fill, Gemm, Launch, Operand, View
from test_models import MODELS

pytestmark = pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)


@pytest.fixture
def device() -> Iterator[SimDevice]:
    opened = open_device("sim")
    assert isinstance(opened, SimDevice)
    yield opened
    opened.close()
    opened.close()


def relu(n: int) -> Launch:
    """Of n numbers x into y, as the operator launches it."""
    x, y = (Operand(name=name, dtype="float32", shape=(n,)) for name in "xy")
    (variant,) = Relu().variants()
    (step,) = variant.steps(Problem(operator=Relu(), inputs=(x,), outputs=(y,)))
    assert isinstance(step, Launch)
    return step


@pytest.mark.parametrize(
    "op, case, variant",
    [
        ("Relu", "channels fill their padding", "elementwise"),
        ("Conv", "strides differ", "direct"),
        ("Conv", "strides differ", "im2col"),
        ("Gemm", "one row", "blas"),
        ("Softmax", "along many channels", "warp"),
    ],
)
def test_operator(op: str, case: str, variant: str) -> None:
    harness.check(op, case, variant, "sim")


def test_network_gives_what_the_host_gives() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 24, 24)).astype(np.float32)
    model = minicnn.load(MODELS / "mtcnn_rnet.onnx", shapes={"x": x.shape})
    found = {}
    for name in ("host", "sim"):
        with model.plan(device=name) as engine:
            found[name], timing = engine.timed_run(x, profiled=True)
    for name, values in found["host"].items():
        assert np.abs(values - found["sim"][name]).max() <= 1e-5 * np.abs(values).max()
    assert np.isnan(timing.layer_us).all()


def test_products_copies_fills(device: SimDevice) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.uniform(-1, 1, 200).astype(np.float32) for _ in range(3))
    pointers = {name: device.alloc(800) for name in "abc"}
    assert all(pointer % 256 == 0 for pointer in pointers.values())

    def address(view: View) -> int:
        return pointers[view.tensor] + view.byte_offset

    for name, array in zip("abc", (a, b, c), strict=True):
        device.upload(pointers[name], array)
    step = Gemm(
        m=3, n=5, k=4, a=View(tensor="a"), b=View(tensor="b"), c=View(tensor="c"), lda=6, ldb=9, ldc=7,
        transpose_b=True, alpha=0.5, beta=2.0, batch=2, stride_a=40, stride_b=60, stride_c=50,
    )  # fmt: skip
    device.gemm(step, address)()
    found = np.empty_like(c)
    device.download(pointers["c"], found)
    expected = c.astype(np.float64)
    for index in range(2):
        left = a[40 * index :][:18].reshape(3, 6)[:, :4].astype(np.float64)
        right = b[60 * index :][:45].reshape(5, 9)[:, :4]
        target = expected[50 * index :][:21].reshape(3, 7)[:, :5]
        target[...] = 0.5 * left @ right.T + 2 * target
    np.testing.assert_allclose(found, expected, atol=1e-6)
    device.fill(Fill(target=View(tensor="b", byte_offset=8), nbytes=12, pattern=0x3F800000), address)()
    device.copy(Copy(source=View(tensor="b"), target=View(tensor="a", byte_offset=4), nbytes=40), address)()
    device.download(pointers["a"], found)
    assert (found[1:11] == [*b[:2], 1, 1, 1, *b[5:10]]).all()
    with pytest.raises(DeviceError, match="leaves its allocation"):
        device.upload(pointers["a"] + 4, a)
    image = rng.uniform(-1, 1, (2, 4, 5, 3)).astype(np.float32)
    image_pointer, spectrum_pointer = device.alloc(image.nbytes), device.alloc(8 * 2 * 4 * 3 * 3)
    pointers |= {"image": image_pointer, "spectrum": spectrum_pointer}
    device.upload(image_pointer, image)
    views = {"source": View(tensor="image"), "target": View(tensor="spectrum")}
    there = Fft(**views, extents=(4, 5), batch=2, channels=3)
    device.fft(there, address)()
    spectrum = np.empty((2, 4, 3, 3), np.complex64)
    device.download(spectrum_pointer, spectrum)
    np.testing.assert_allclose(spectrum, np.fft.rfft2(image.astype(np.float64), axes=(1, 2)), atol=1e-5)


def test_memory_is_bounded_and_starts_as_nan(device: SimDevice) -> None:
    pointer = device.alloc(64)
    values = np.zeros(16, np.float32)
    device.download(pointer, values)
    assert np.isnan(values).all()
    device.free(pointer)
    with pytest.raises(DeviceError, match="not that much memory"):
        device.alloc(MEMORY_BYTES + 1)
    with pytest.raises(DeviceError, match="leaves its allocation"):
        device.download(pointer, values)


def test_events_count_what_lies_between_them(device: SimDevice) -> None:
    x = np.linspace(-1, 1, 200, dtype=np.float32)
    pointers = {name: device.alloc(x.nbytes) for name in "xy"}
    device.upload(pointers["x"], x)
    first, second, third = (device.event() for _ in range(3))
    action = device.launch(relu(200), lambda view: pointers[view.tensor])
    program = device.capture([device.record(first), action, device.record(second), device.record(third)])
    program()
    program()
    counted = device.counted(first, second)
    assert counted["launches"] == 1 and counted["global_store_bytes"] == x.nbytes
    assert not any(device.counted(second, third).values())
    assert device.counters()["launches"] == 2
    assert np.isnan(device.elapsed_us(first, second))


def test_a_fault_is_named(device: SimDevice) -> None:
    pointer = device.alloc(400)
    action = device.launch(relu(200), lambda view: pointer)  # 800 bytes
    with pytest.raises(DeviceError, match=r"out_of_bounds.*kernel relu, block \(0,0,0\), thread"):
        action()
