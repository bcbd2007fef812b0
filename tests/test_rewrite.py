"""Fusion: what joins, what must not, and that the joined network computes what the nodes did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn
from minicnn.engine import Options

ort = pytest.importorskip("onnxruntime")
rng = np.random.default_rng(0)


def array(*shape: int, low: float = -1.0) -> np.ndarray:
    return rng.uniform(low, 1, shape).astype(np.float32)


CONV = {"w": array(16, 8, 3, 3), "b": array(16)}
NORM = {"scale": array(16), "shift": array(16), "mean": array(16), "var": array(16, low=0.1)}


def conv(x: str, y: str, w: str = "w", **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w, "b"], [y], name=f"conv_{y}", **{"pads": [1] * 4, **attributes})


def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name=f"{op.lower()}_{output}", **attributes)


# name: nodes, constants beside CONV, outputs, the operators that are left, those of the first layer's ONNX
# nodes
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], list[str], list[str]]] = {
    "convolution and activation": ([conv("x", "c"), node("Relu", ["c"], "y")], {}, ["y"], ["Conv"]),
    "clip by constant inputs": (
        [conv("x", "c"), node("Clip", ["c", "low", "high"], "y")],
        {"low": np.float32(0), "high": np.float32(0.5)},
        ["y"],
        ["Conv"],
    ),
    "normalization into weights": (
        [conv("x", "c"), node("BatchNormalization", ["c", *NORM], "n"), node("Relu", ["n"], "y")],
        NORM,
        ["y"],
        ["Conv"],
    ),
    "normalization into the weights of a transposed convolution in groups": (
        [
            helper.make_node("ConvTranspose", ["x", "wt", "b"], ["c"], name="up", group=2, strides=[2, 2]),
            node("BatchNormalization", ["c", *NORM], "n"),
            node("Relu", ["n"], "y"),
        ],
        {"wt": array(8, 8, 2, 2), **NORM},
        ["y"],
        ["ConvTranspose"],
    ),
    "scale and shift of Caffe": (
        [
            conv("x", "c"),
            node("BatchNormalization", ["c", *NORM], "n"),
            node("Mul", ["n", "k"], "m"),
            node("Add", ["s", "m"], "y"),
        ],
        NORM | {"k": array(16, 1, 1), "s": array(1, 16, 1, 1)},
        ["y"],
        ["Conv"],
    ),
    "a residual": (
        [conv("x", "c"), conv("x", "d"), node("Add", ["c", "d"], "a"), node("Relu", ["a"], "y")],
        {},
        ["y"],
        ["Conv", "Conv"],
    ),
    "zero padding into the convolution": (
        [node("Pad", ["x", "pads"], "p"), conv("p", "y", pads=[0] * 4)],
        {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1])},
        ["y"],
        ["Conv"],
    ),
    "padding with ones stays": (
        [node("Pad", ["x", "pads", "one"], "p"), conv("p", "y")],
        {"pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "one": np.float32(1)},
        ["y"],
        ["Pad", "Conv"],
    ),
    "padding of some axes": (
        [node("Pad", ["x", "pads", "", "axes"], "p"), conv("p", "y")],
        {"pads": np.array([1, 2]), "axes": np.array([-1])},
        ["y"],
        ["Conv"],
    ),
    "padding of channels stays": (
        [node("Pad", ["x", "pads"], "p"), conv("p", "y", w="wide")],
        {"pads": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "wide": array(16, 9, 3, 3)},
        ["y"],
        ["Pad", "Conv"],
    ),
    "a sum that others read stays": (
        [conv("x", "c"), node("Relu", ["c"], "r"), node("Add", ["r", "c"], "y")],
        {},
        ["y"],
        ["Conv", "Relu", "Add"],
    ),
    "an output of the network stays": (
        [conv("x", "c"), node("Relu", ["c"], "y")],
        {},
        ["y", "c"],
        ["Conv", "Relu"],
    ),
    "an activation before the sum ends the epilogue": (
        [conv("x", "c"), node("Relu", ["c"], "r"), conv("x", "d"), node("Add", ["r", "d"], "y")],
        {},
        ["y"],
        ["Conv", "Conv"],
    ),
    "a scale after the activation stays": (
        [conv("x", "c"), node("Relu", ["c"], "r"), node("Mul", ["r", "k"], "y")],
        {"k": array(16, 1, 1)},
        ["y"],
        ["Conv", "Mul"],
    ),
    "a row of a picture is no channel": (
        [conv("x", "c"), node("Add", ["c", "row"], "y")],
        {"row": array(16)},  # along W, which is 16 too
        ["y"],
        ["Conv", "Add"],
    ),
    "identity and dropout vanish": (
        [node("Identity", ["x"], "i"), conv("i", "c"), node("Dropout", ["c"], "d"), node("Relu", ["d"], "y")],
        {},
        ["y"],
        ["Conv"],
    ),
    "matrix product and a row": (
        [node("Flatten", ["x"], "f"), node("MatMul", ["f", "m"], "p"), node("Add", ["p", "row"], "s"),
         node("Relu", ["s"], "y")],
        {"m": array(8 * 9 * 16, 5), "row": array(5)},
        ["y"],
        ["Flatten", "Gemm"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fusion(name: str, tmp_path: Path) -> None:
    nodes, constants, outputs, left = CASES[name]
    used = {n for made in nodes for n in made.input}
    weights = {n: a for n, a in (CONV | constants).items() if n in used}
    graph = helper.make_graph(
        nodes,
        "fusion",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, 9, 16])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    path = tmp_path / "fusion.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    model = minicnn.load(path)
    plan = model.make_plan()
    assert [layer.op for layer in plan.layers if layer.op != "Convert"] == left
    covered = [n for layer in plan.layers for n in layer.nodes]
    assert len(covered) == len(set(covered))
    assert set(covered) <= {n.name for n in nodes}
    if "identity" not in name:
        assert set(covered) == {n.name for n in nodes}, "every ONNX node is in exactly one layer"
    unfused = model.make_plan(options=Options(fuse=False))
    assert [layer.op for layer in unfused.layers if layer.op != "Convert"] == [n.op_type for n in nodes]

    x = array(2, 8, 9, 16)
    exact = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(outputs, {"x": x})
    for fuse in (True, False):
        with model.plan(device="host", fuse=fuse) as engine:
            found = engine.run(x)
        for output, value in zip(outputs, exact, strict=True):
            np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-4)
