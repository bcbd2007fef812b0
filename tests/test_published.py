"""The networks of models/published.py at reduced size against onnxruntime: control of the tails included."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import harness
import minicnn

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
import published

ort = pytest.importorskip("onnxruntime")

BOUND = 1e-4  # error norm over the centred output's norm
# Where a sum falls on the other side of a rounding, a value moves by 1/255 of its range, and others after it.
# onnxruntime's own answers, optimised and not, lie 0.07 apart on the reduced network.
QUANTISED_BOUND = 0.1
SMALL = {
    "crnn": {"image_size": 100},
    "deeplab_v3": {"image_size": 97},
    "faster_rcnn": {"image_size": 128},
    "ssd300": {"image_size": 160},
    "yolov3_tiny": {"image_size": 128},
}


# Smaller still, an eighth of the channels: interpreted instruction by instruction on the simulated GPU.
TINY = {"crnn": 24, "deeplab_v3": 33, "faster_rcnn": 64, "ssd300": 128, "unet": 32, "yolov3_tiny": 64}


def reduced(name: str, folder: Path, batch: int = 1) -> Path:
    return built(name, folder, batch, **({"image_size": 64} | SMALL.get(name, {})), width=0.25)


def built(name: str, folder: Path, batch: int, **size: float) -> Path:
    model = published.build(name, 1, batch, **size)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def witness(path: Path) -> ort.InferenceSession:
    """onnxruntime, as the file says: optimised, it sums quantised convolutions in integers."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def relative_error(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact - exact.mean()))


@pytest.mark.parametrize("name", sorted(published.NETWORKS))
def test_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    path = reduced(name, tmp_path)
    session = witness(path)
    (shape,) = (value.shape for value in session.get_inputs())
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    exact = dict(zip((o.name for o in session.get_outputs()), session.run(None, {"x": x}), strict=True))
    bound = QUANTISED_BOUND if "qdq" in name else BOUND
    for fuse in (True, False):
        with minicnn.load(path).plan(device="host", fuse=fuse) as engine:
            found = engine.run(x)
            again = engine.run(x)
        assert set(found) == set(exact)
        for output, expected in exact.items():
            y = found[output]
            assert y.shape == expected.shape, output
            assert y.size, output
            np.testing.assert_array_equal(again[output], y)
            if y.dtype.kind == "f":
                assert relative_error(y, expected) < bound, output
            else:
                np.testing.assert_array_equal(y, expected, err_msg=output)


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("name", sorted(published.NETWORKS))
def test_a_tiny_one_agrees_with_onnxruntime(name: str, device: str, tmp_path: Path) -> None:
    path = built(name, tmp_path, 1, image_size=TINY.get(name, 32), width=0.125)
    session = witness(path)
    (shape,) = (value.shape for value in session.get_inputs())
    x = np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)
    with minicnn.load(path).plan(device=harness.open_device(device)) as engine:
        found = engine.run(x)
    bound = QUANTISED_BOUND if "qdq" in name else BOUND
    for output, expected in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
        y = found[output.name]
        assert y.shape == expected.shape and y.size, output.name
        if y.dtype.kind == "f":
            assert relative_error(y, expected) < bound, output.name
        else:
            np.testing.assert_array_equal(y, expected, err_msg=output.name)


def test_other_pictures_leave_other_numbers_of_boxes(tmp_path: Path) -> None:
    """One engine, inputs that lead to tails of different extents, and back to the first."""
    path = reduced("yolov3_tiny", tmp_path)
    session = witness(path)
    (shape,) = (value.shape for value in session.get_inputs())
    extents = set()
    with minicnn.load(path).plan(device="host") as engine:
        for scale in (1.0, 0.1, 3.0, 1.0):
            x = np.random.default_rng(0).uniform(-scale, scale, shape).astype(np.float32)
            (selected,) = session.run(["selected_indices"], {"x": x})
            np.testing.assert_array_equal(engine.run(x)["selected_indices"], selected)
            extents.add(len(selected))
    assert len(extents) > 1


@pytest.mark.parametrize("name", ["crnn", "shufflenet_v2", "ssd300", "yolov3_tiny"])
def test_three_pictures_at_once(name: str, tmp_path: Path) -> None:
    path = reduced(name, tmp_path, batch=3)
    session = witness(path)
    (shape,) = (value.shape for value in session.get_inputs())
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    with minicnn.load(path).plan(device="host") as engine:
        found = engine.run(x)
    for output, expected in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
        assert found[output.name].shape == expected.shape
        np.testing.assert_allclose(found[output.name], expected, rtol=1e-3, atol=1e-3)


def test_the_same_arguments_give_the_same_bytes() -> None:
    first, second = (published.build("shufflenet_v2", 7, image_size=64, width=0.25) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


def test_unknown_names_and_pictures_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="no network called"):
        published.build("alexnet")
    with pytest.raises(ValueError, match="too small"):
        published.build("crnn", image_size=2)
    with pytest.raises(ValueError, match="one picture"):
        published.build("faster_rcnn", batch=2)


def test_command_line_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "net.onnx"
    arguments = ["unet", "--image-size", "32", "--width", "0.125", "--output", str(output)]
    assert published.main(arguments) == 0
    assert "nodes" in capsys.readouterr().out
    onnx.checker.check_model(onnx.load(output))
    assert published.main([*arguments[:-1], str(tmp_path / "missing" / "net.onnx")]) == 2
