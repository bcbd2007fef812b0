"""Arithmetic of two or more operands: every variant against the definition, and that against onnxruntime."""

import pytest
from onnx import helper

import harness
import minicnn
import onnx_models
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.broadcast import Add, PRelu, Sum

OPERATORS = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Sum", "Mean", "Max", "Min")
ALL = [pytest.param(op, *p.values, id=f"{op}-{p.id}") for op in OPERATORS for p in harness.grid(op)[1]]
BEFORE_ONNXRUNTIME = {"add, at an axis", "prelu, a list of slopes"}  # opset 6: it starts at 7
WITNESSED = [(op, case) for op in OPERATORS for case in harness.cases(op) if case not in BEFORE_ONNXRUNTIME]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_broadcast(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", WITNESSED)
def test_definition_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)


@pytest.mark.parametrize(
    "operator, shapes",
    [
        (Add(), [(2, 3), (2,)]),
        (Add(opset=6, broadcast=1, axis=2), [(2, 5, 3, 7), (5,)]),
        (PRelu(), [(2, 5), (3, 2, 5)]),
        (Sum(), [(2, 3), (2, 3), (4,)]),
    ],
)
def test_shapes_that_do_not_broadcast(operator, shapes):
    with pytest.raises(ShapeError, match="broadcast"):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


@pytest.mark.parametrize("second, in_place", [("t", False), ("flat", False), ("c", True)])
def test_a_tensor_read_twice_is_not_overwritten(second, in_place, tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["t"]),
        helper.make_node("Reshape", ["t", "shape"], ["flat"]),
        helper.make_node("Mul", ["t", second], ["m"]),
        helper.make_node("Neg", ["m"], ["y"]),
    ]
    shape = helper.make_tensor("shape", onnx_models.TensorProto.INT64, [2], [5, 4])
    graph = helper.make_graph(
        nodes,
        "twice",
        [onnx_models.value("x", (5, 4))],
        [onnx_models.value("y", (5, 4))],
        [shape, onnx_models.tensor("c", 5, 4)],
    )
    file = onnx_models.saved(onnx_models.model(graph), tmp_path)
    plan = minicnn.load(file).plan(device="host", fuse="none").plan
    product = next(layer for layer in plan.layers if layer.op == "Mul")
    places = {operand.name: plan.places[operand.name] for operand in (*product.inputs, *product.outputs)}
    assert (places["m"] == places["t"]) is in_place
