"""Classic networks, narrow and on small images, and the small real ones in full, on the device under test.

Against onnxruntime; the captured graph against its own steps run singly; boundaries; two plans at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import harness
import minicnn
from minicnn.device.base import Action, Device
from test_models import MODELS, build
from test_networks import BOUND, relative_error, session

# file's or builder's name: input shape. Narrow networks have an eighth of their channels, in multiples of 8.
REAL = {
    "mnist-conv/model": (1, 1, 28, 28),
    "mtcnn_pnet": (1, 3, 41, 53),
    "mtcnn_rnet": (2, 3, 24, 24),
    "mtcnn_onet": (1, 3, 48, 48),
}
NARROW = {
    "alexnet": (1, 3, 63, 63),
    "vgg16": (1, 3, 32, 32),
    "resnet18": (2, 3, 33, 33),
    "resnet50": (1, 3, 32, 32),
    "googlenet": (1, 3, 63, 63),
    "squeezenet": (1, 3, 47, 47),
    "mobilenet_v2": (1, 3, 33, 33),
    "efficientnet_lite0": (1, 3, 37, 37),
    "densenet121": (1, 3, 32, 32),
}
NETWORKS = {**REAL, **NARROW}
WIDTH = 0.125

on_every_device = pytest.mark.parametrize("device", harness.DEVICES)


def network(name: str, folder: Path, batch: int | None = None) -> Path:
    """The model file: a real one, or a narrow one built into `folder`."""
    if name in REAL:
        return MODELS / f"{name}.onnx"
    shape = NARROW[name]
    path = folder / f"{name}.onnx"
    onnx.save(build.build(name, 1, batch or shape[0], image_size=shape[2], width=WIDTH), path)
    return path


def load(path: Path, shape: tuple[int, ...]) -> minicnn.Model:
    (feed,) = (i.name for i in session(path).get_inputs())
    return minicnn.load(path, {feed: shape})


def picture(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def one_after_another(self: Device, actions: list[Action]) -> Callable[[], None]:
    """In the place of Device.capture."""

    def run() -> None:
        for action in actions:
            action()

    return run


@on_every_device
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = NETWORKS[name]
    path = network(name, tmp_path)
    opened = harness.open_device(device)
    model = load(path, shape)
    witness = session(path)
    first, second = picture(shape, 0), picture(shape, 1)
    with model.plan(device=opened) as engine:
        assert not any(layer.is_fallback for layer in engine.plan.layers)
        found = [engine.run(x) for x in (first, second, first)]
        profiled, timing = engine.timed_run(second, profiled=True)
        plain, untimed = engine.timed_run(second, profiled=False)
    for x, outputs in zip((first, second), found, strict=False):
        exact = witness.run(None, {witness.get_inputs()[0].name: x})
        for output, value in zip(witness.get_outputs(), exact, strict=True):
            error = relative_error(outputs[output.name], value)
            print(f"{name}, {output.name}: error {error:.1e}")
            assert outputs[output.name].shape == value.shape and error < BOUND
    assert same_bits(found[0], found[2]) and not same_bits(found[0], found[1])
    assert same_bits(found[1], profiled) and same_bits(found[1], plain)
    assert np.isnan(untimed.layer_us).all()
    if opened.info.kind != "sim":  # it has no times
        assert (timing.layer_us > 0).all(), "a boundary that isn't there, or isn't behind the one before it"
        assert np.isclose(timing.layer_us.sum(), timing.device_us, rtol=1e-3) and untimed.device_us > 0
    assert not getattr(opened, "capture_failure", ""), opened.capture_failure
    monkeypatch.setattr(type(opened), "capture", one_after_another)
    with model.plan(device=opened) as engine:
        assert same_bits(found[0], engine.run(first)) and same_bits(found[1], engine.run(second))


def same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    assert a.keys() == b.keys()
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


@on_every_device
def test_two_plans_on_one_device(device: str, tmp_path: Path) -> None:
    """Of two batch sizes, in turn, each with its own weights and arena."""
    opened = harness.open_device(device)
    one, three = (tmp_path / str(batch) for batch in (1, 3))
    for folder, batch in ((one, 1), (three, 3)):
        folder.mkdir()
        network("resnet18", folder, batch)
    x = picture((3, 3, 33, 33), 5)
    with (
        load(one / "resnet18.onnx", (1, 3, 33, 33)).plan(device=opened) as single,
        load(three / "resnet18.onnx", (3, 3, 33, 33)).plan(device=opened) as triple,
    ):
        for _ in range(2):
            together = triple.run(x)["logits"]
            for index in range(3):
                alone = single.run(x[index : index + 1])["logits"][0]
                assert relative_error(alone, together[index]) < BOUND
        single.close()
        assert (triple.run(x)["logits"] == together).all()
