"""LeakyRelu: every variant against the definition, and that against onnxruntime; infinities and NaN."""

import numpy as np
import pytest
from onnx import helper

import harness
import minicnn
from minicnn.ops.leakyrelu import CASES, LeakyRelu
from minicnn.registry import Problem
from minicnn.step import Operand
from onnx_models import FLOAT, model, saved, small, value


@pytest.mark.parametrize(*harness.grid("LeakyRelu"))
def test_leakyrelu(case, variant, device):
    harness.check("LeakyRelu", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("LeakyRelu", case)


def test_nothing_to_do():
    x, y = (Operand(name=name, dtype="float32", shape=(0, 3, 2, 2)) for name in "xy")
    problem = Problem(operator=LeakyRelu(), inputs=(x,), outputs=(y,))
    assert all(variant.steps(problem) == () for variant in LeakyRelu().variants())


@pytest.mark.parametrize("alpha", [None, 0.25, 0.0, -0.5, 1.75])
@pytest.mark.parametrize("shape", [(9,), (3, 3), (1, 9, 1), (1, 3, 3, 1)], ids=str)
def test_special_numbers(alpha, shape, tmp_path):
    """Written out by hand, so that the definition is held too; an alpha that the model leaves out is 0.01."""
    attributes = {} if alpha is None else {"alpha": alpha}
    node = helper.make_node("LeakyRelu", ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [value("x", shape)], [value("y", shape)])
    slope = np.float32(0.01 if alpha is None else alpha)
    x = np.float32([np.nan, np.inf, -np.inf, -1, -4, 0, 1, 3e38, -2])
    with np.errstate(invalid="ignore"):  # infinity times 0
        defined = LeakyRelu(**attributes).reference(x)
        expected = np.float32([np.nan, np.inf, -np.inf * slope, -slope, -4 * slope, 0, 1, 3e38, -2 * slope])
    with minicnn.load(saved(model(graph), tmp_path)).plan(device="host") as engine:
        assert not any(layer.is_fallback for layer in engine.plan.layers)
        (y,) = engine.run({"x": x.reshape(shape)}).values()
    np.testing.assert_array_equal(y.reshape(-1), expected)
    np.testing.assert_array_equal(defined, expected)


@pytest.mark.parametrize("opset", [6, 15, 16, 21])
def test_after_a_convolution_it_is_planned_natively(opset, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("LeakyRelu", ["a"], ["y"], alpha=0.1),
    ]
    proto = small(nodes=nodes, inputs=[value("x", (1, 3, 8, 8), FLOAT)])
    proto.opset_import[0].version = opset
    with minicnn.load(saved(proto, tmp_path)).plan(device="host") as engine:
        ops = [layer.op for layer in engine.plan.layers]
        assert "LeakyRelu" in ops
        assert not any(layer.is_fallback for layer in engine.plan.layers)
