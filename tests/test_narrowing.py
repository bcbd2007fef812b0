"""Half precision on a GPU: what gets halves, what stays float32, and how far the answers are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import harness
import minicnn
from minicnn.engine import Options, _plan
from minicnn.narrowing import narrow
from minicnn.plan import Plan
from minicnn.registry import Target
from minicnn.rewrite import rewrite
from test_models import build
from test_networks import relative_error, session
from test_widening import HALF_STEP, halved

SIZES = {"googlenet": 65}  # of what is too deep for a smaller image
GPU = Target(kind="cuda", architecture="sm_90")
OLD_GPU = Target(kind="cuda", architecture="sm_75")
NETWORKS = ("resnet18", "mobilenet_v2", "densenet121", "googlenet")

on_every_device = pytest.mark.parametrize("device", harness.DEVICES)


def saved(name: str, folder: Path, *, half: bool = False) -> Path:
    path = folder / f"{name}.onnx"
    model = build.build(name, 1, 2, image_size=SIZES.get(name, 33), width=0.125)
    onnx.save(halved(model) if half else model, path)
    return path


def planned(path: Path, target: Target, precision: str = "fp16") -> Plan:
    return _plan(minicnn.load(path).resolve(), Options(precision=precision), target)


@on_every_device
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_in_half_is_near_the_one_in_float(name: str, device: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    witness = session(path)
    (known,) = witness.get_inputs()
    x = np.random.default_rng(0).uniform(-1, 1, known.shape).astype(np.float32)
    (exact,) = witness.run(None, {known.name: x})
    with minicnn.load(path).plan(device=harness.open_device(device), precision="fp16") as engine:
        (y,) = engine.run(x).values()
        layers = len(engine.plan.layers)
        in_half = [layer for layer in engine.plan.layers if layer.variant == "igemm_half"]
    assert y.dtype == np.float32
    # Every layer's output is rounded, and what independent roundings do adds up in squares.
    roundings = 2 * math.sqrt(layers) * HALF_STEP if device != "host" else 1e-5
    assert relative_error(y, exact) < roundings
    assert bool(in_half) == (device != "host")


@pytest.mark.parametrize("name", NETWORKS)
def test_only_what_no_kernel_does_in_half_is_cast(name: str, tmp_path: Path) -> None:
    plan = planned(saved(name, tmp_path), GPU)
    ops = [layer.op for layer in plan.layers]
    between = {"googlenet": 2 * ops.count("LRN")}.get(name, 0)
    assert ops.count("Cast") == 2 + between
    own = planned(saved(name, tmp_path, half=True), GPU, "fp32")
    assert [layer.op for layer in own.layers].count("Cast") == between
    assert sum(layer.variant == "igemm_half" for layer in own.layers) == ops.count("Gemm") + sum(
        layer.op == "Conv" and not layer.variant.startswith("depthwise") for layer in plan.layers
    )


def test_memory_and_weights_are_halved(tmp_path: Path) -> None:
    path = tmp_path / "resnet18.onnx"
    onnx.save(build.build("resnet18", 1, 2, width=0.25), path)
    single, half = (planned(path, GPU, precision) for precision in ("fp32", "fp16"))
    assert half.live_peak_bytes < 0.6 * single.live_peak_bytes
    assert half.weight_bytes < 0.6 * single.weight_bytes


@pytest.mark.parametrize("target", [OLD_GPU, Target(kind="host")], ids=["no tensor cores", "host"])
def test_without_kernels_for_halves_all_stays_float(target: Target, tmp_path: Path) -> None:
    path = saved("resnet18", tmp_path)
    single, half = (planned(path, target, precision) for precision in ("fp32", "fp16"))
    assert [layer.name for layer in half.layers] == [layer.name for layer in single.layers]


def test_a_weight_that_no_half_holds_keeps_its_layer(tmp_path: Path) -> None:
    graph = rewrite(minicnn.load(saved("resnet18", tmp_path)).resolve())
    conv = next(node for node in graph.nodes[3:] if node.op == "Conv")
    huge = graph.constants[conv.inputs[1]].copy()
    huge.flat[0] = 1e5
    changed = narrow(replace(graph, constants=dict(graph.constants) | {conv.inputs[1]: huge}), GPU)
    kinds = {node.name: changed.types[node.outputs[0]].dtype for node in changed.nodes}
    assert kinds[conv.name] == "float32"
    assert "float16" in {kinds[node.name] for node in graph.nodes if node.op == "Conv"}


@on_every_device
def test_casts_of_the_network_meet_its_halves(device: str, tmp_path: Path) -> None:
    """float16 in the middle of a float32 network, an output in each type, a tensor that both read."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["small"], to=TensorProto.FLOAT16),
        helper.make_node("Relu", ["small"], ["y"]),
        helper.make_node("Softmax", ["sums"], ["z"], axis=1),
    ]
    w = np.random.default_rng(3).uniform(-1, 1, (24, 16, 1, 1)).astype(np.float32)
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "casts",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 3, 5])],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 24, 3, 5]),
                helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 24, 3, 5]),
                helper.make_tensor_value_info("sums", TensorProto.FLOAT, [1, 24, 3, 5]),
            ],
            [numpy_helper.from_array(w, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = tmp_path / "casts.onnx"
    onnx.save(model, path)
    x = np.random.default_rng(4).uniform(-1, 1, (1, 16, 3, 5)).astype(np.float32)
    exact = np.einsum("nchw,kc->nkhw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    with minicnn.load(path).plan(device=harness.open_device(device), precision="fp16") as engine:
        found = engine.run(x)
    magnitude = np.einsum("nchw,kc->nkhw", np.abs(x), np.abs(w[:, :, 0, 0]))
    bound = 2.01 * HALF_STEP * magnitude + HALF_STEP * np.abs(exact)  # both factors rounded, then the sum
    assert {name: str(y.dtype) for name, y in found.items()} == {
        "y": "float16", "z": "float32", "sums": "float32",
    }  # fmt: skip
    assert (np.abs(found["sums"] - exact) <= bound).all()
    assert (np.abs(found["y"] - np.maximum(exact, 0)) <= bound + HALF_STEP * np.abs(exact)).all()
    exponents = np.exp(found["sums"].astype(np.float64))
    np.testing.assert_allclose(found["z"], exponents / exponents.sum(axis=1, keepdims=True), rtol=1e-5)
