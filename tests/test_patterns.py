"""Functions written out in pieces become one node, and those that only look like them don't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn

ort = pytest.importorskip("onnxruntime")
SHAPE = (2, 5, 3, 7)


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes)


CONSTANTS = {
    "half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0, "zero": 0.0, "sixth": 1 / 6,
    "root": np.sqrt(2), "inverse": np.sqrt(0.5),
}  # fmt: skip
ERF = [node("Div", "x root", "s"), node("Erf", "s", "e"), node("Add", "e one", "a")]
CLIP = [node("Add", "x three", "a"), node("Clip", "a zero six", "c")]
# name: nodes, opset, the operators that are left
CASES = {
    "swish": ([node("Sigmoid", "x", "s"), node("Mul", "x s", "y")], 13, ["Swish"]),
    "swish, the sigmoid first": ([node("Sigmoid", "x", "s"), node("Mul", "s x", "y")], 13, ["Swish"]),
    "a sigmoid of something else": (
        [node("Neg", "x", "n"), node("Sigmoid", "n", "s"), node("Mul", "x s", "y")],
        13, ["Neg", "Sigmoid", "Mul"],
    ),
    "a sigmoid that others read": (
        [node("Sigmoid", "x", "s"), node("Mul", "x s", "m"), node("Add", "m s", "y")],
        13, ["Sigmoid", "Mul", "Add"],
    ),
    "hardswish": (
        [node("HardSigmoid", "x", "s", alpha=1 / 6, beta=0.5), node("Mul", "x s", "y")], 13, ["HardSwish"]
    ),
    "a hardsigmoid of another slope": (
        [node("HardSigmoid", "x", "s"), node("Mul", "x s", "y")], 13, ["HardSigmoid", "Mul"]
    ),
    "hardswish of older exporters": (
        [*CLIP, node("Div", "c six", "d"), node("Mul", "x d", "y")], 11, ["HardSwish"]
    ),
    "hardswish, divided last": (
        [*CLIP, node("Mul", "x c", "m"), node("Div", "m six", "y")], 11, ["HardSwish"]
    ),
    "hardsigmoid of older exporters": ([*CLIP, node("Mul", "c sixth", "y")], 13, ["HardSigmoid"]),
    "another sum": (
        [node("Add", "x two", "a"), node("Clip", "a zero six", "c"), node("Div", "c six", "y")],
        13, ["Add", "Clip", "Div"],
    ),
    "divided by the clip": (
        [*CLIP, node("Add", "c one", "p"), node("Div", "x p", "d"), node("Div", "d six", "y")],
        13, ["Add", "Clip", "Add", "Div", "Div"],
    ),
    "gelu": ([*ERF, node("Mul", "x a", "m"), node("Mul", "m half", "y")], 13, ["Gelu"]),
    "gelu, half of x first": (
        [node("Mul", "x half", "h"), *ERF, node("Mul", "h a", "y")], 13, ["Gelu"],
    ),
    "gelu, a factor and the one first": (
        [node("Mul", "inverse x", "s"), node("Erf", "s", "e"), node("Add", "one e", "a"),
         node("Mul", "a x", "m"), node("Mul", "half m", "y")],
        13, ["Gelu"],
    ),
    "an erf and two": (
        [*ERF[:2], node("Add", "e two", "a"), node("Mul", "x a", "m"), node("Mul", "m half", "y")],
        13, ["Div", "Erf", "Add", "Mul", "Mul"],
    ),
    "twice a gelu": ([*ERF, node("Mul", "x a", "y")], 13, ["Div", "Erf", "Add", "Mul"]),
    "mish": ([node("Softplus", "x", "s"), node("Tanh", "s", "t"), node("Mul", "x t", "y")], 13, ["Mish"]),
    "a mean that is a pooling": ([node("ReduceMean", "x", "y", axes=[2, 3])], 13, ["GlobalAveragePool"]),
    "the same, counted from the end": (
        [node("ReduceMean", "x", "y", axes=[-1, -2])], 13, ["GlobalAveragePool"]
    ),
    "a mean that drops its axes": (
        [node("ReduceMean", "x", "y", axes=[2, 3], keepdims=0)], 13, ["ReduceMean"]
    ),
    "a mean of channels": ([node("ReduceMean", "x", "y", axes=[1])], 13, ["ReduceMean"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pattern(name: str, tmp_path: Path) -> None:
    nodes, opset, left = CASES[name]
    used = {n for made in nodes for n in made.input}
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(v), n) for n, v in CONSTANTS.items() if n in used],
    )
    path = tmp_path / "pattern.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    model = minicnn.load(path)
    plan = model.make_plan()
    assert [layer.op for layer in plan.layers if layer.op != "Convert"] == left
    assert not any(layer.is_fallback for layer in plan.layers)
    assert {n for layer in plan.layers for n in layer.nodes} == {n.name for n in nodes}
    x = np.random.default_rng(0).uniform(-5, 5, SHAPE).astype(np.float32)
    (exact,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    with model.plan(device="host") as engine:
        found = engine.run(x)["y"]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_a_convolution_takes_the_swish(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, (16, 5, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "x w", "c"), node("Sigmoid", "c", "s"), node("Mul", "c s", "y")]
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "pattern.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    model = minicnn.load(path)
    (layer,) = (layer for layer in model.make_plan().layers if layer.op != "Convert")
    assert layer.op == "Conv" and set(layer.nodes) == {"Conv_c", "Sigmoid_s", "Mul_y"}
    x = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(np.float32)
    (exact,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    with model.plan(device="host") as engine:
        np.testing.assert_allclose(engine.run(x)["y"], exact, rtol=1e-5, atol=1e-5)
