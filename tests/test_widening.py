"""Half-precision networks: right on every device, and what float32 takes the place of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import harness
import minicnn
from minicnn.widening import widen
from test_models import build
from test_networks import relative_error, session

HALF_STEP = 2.0**-11  # relative error of a rounding to float16

on_every_device = pytest.mark.parametrize("device", harness.DEVICES)


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with float16 in the place of float32."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


@on_every_device
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "densenet121"])
def test_a_half_network_agrees_with_onnxruntime(name: str, device: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(halved(build.build(name, 1, 2, image_size=33, width=0.125)), path)
    witness = session(path)
    (known,) = witness.get_inputs()
    x = np.random.default_rng(0).uniform(-1, 1, known.shape).astype(np.float16)
    (exact,) = witness.run(None, {known.name: x})
    with minicnn.load(path).plan(device=harness.open_device(device)) as engine:
        (y,) = engine.run(x).values()
        ops = [layer.op for layer in engine.plan.layers]
        assert not any(layer.is_fallback for layer in engine.plan.layers)
    steps = 2 * math.sqrt(len(ops))  # on a GPU every layer's output is rounded to half
    if device == "host":
        assert ops[0] == ops[-1] == "Cast" and ops.count("Cast") == 2
        steps = 4
    assert y.dtype == exact.dtype == np.float16
    assert relative_error(y.astype(np.float64), exact.astype(np.float64)) < steps * HALF_STEP


def mixed_model() -> onnx.ModelProto:
    """Sums in half between tensors of single, a Cast that must go on rounding, a constant that both read."""
    half = {"to": TensorProto.FLOAT16}
    nodes = [
        helper.make_node("Cast", ["x"], ["x16"], **half),
        helper.make_node("Conv", ["x16", "w"], ["sums"]),
        helper.make_node("Mul", ["sums", "large"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "third"], ["thirds"]),
        helper.make_node("Cast", ["thirds"], ["rounded"], **half),
        helper.make_node("Add", ["rounded", "rounded"], ["y"]),
        helper.make_node("Identity", ["sums"], ["seen"]),
    ]
    rng = np.random.default_rng(5)
    constants = {
        "w": rng.uniform(-1, 1, (3, 2, 1, 1)).astype(np.float16),
        "large": np.float16(600).reshape(1),
        "third": np.float32(1 / 3).reshape(1),
    }
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3, 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 3, 3, 5]) for name in ("y", "seen")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@on_every_device
def test_casts_of_the_network_go_on_rounding(device: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.onnx"
    onnx.save(mixed_model(), path)
    x = np.random.default_rng(1).uniform(-1, 1, (1, 2, 3, 5)).astype(np.float32)
    w, large, third = (numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer)
    sums = np.einsum("nchw,kc->nkhw", x.astype(np.float16).astype(np.float64), w[:, :, 0, 0].astype(float))
    # The network's own Casts round; sums and scaled products don't.
    wide = (sums * large.astype(np.float64)).astype(np.float16).astype(np.float64)
    rounded = (wide * third.astype(np.float64)).astype(np.float16).astype(np.float64)
    for fuse in (True, False):
        with minicnn.load(path).plan(device=harness.open_device(device), fuse=fuse) as engine:
            found = engine.run(x)
        np.testing.assert_array_max_ulp(found["seen"], sums.astype(np.float16), maxulp=1)
        error = np.abs(found["y"].astype(np.float64) - 2 * rounded)
        assert (error <= 4 * HALF_STEP * np.abs(2 * rounded)).all()


def test_graphs_without_sums_in_half_stay_as_they_are(tmp_path: Path) -> None:
    for name, model in {
        "single": build.build("resnet18", 1, 1, image_size=33, width=0.125),
        "elementwise": helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["x"], ["y"])],
                "elementwise",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [3])],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3])],
            ),
            ir_version=8,
            opset_imports=[helper.make_opsetid("", 17)],
        ),
    }.items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        graph = minicnn.load(path).resolve()
        assert widen(graph) is graph
