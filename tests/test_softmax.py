"""Softmax, LogSoftmax, Hardmax: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.softmax import CASES, Hardmax, Softmax
from minicnn.registry import Problem
from minicnn.step import Operand


@pytest.mark.parametrize(*harness.grids("Softmax", "LogSoftmax", "Hardmax"))
def test_softmax(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (Softmax(axis=2), [(2, 3)], "-2 to 1"),
        (Softmax(axis=-3), [(2, 3)], "-2 to 1"),
        (Softmax(opset=9, axis=2), [(2, 3)], "-2 to 1"),
        (Hardmax(axis=2), [(2, 3)], "-2 to 1"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


def test_nothing_to_do():
    x, y = (Operand(name=name, dtype="float32", shape=(0, 3, 2, 2)) for name in "xy")
    problem = Problem(operator=Softmax(), inputs=(x,), outputs=(y,))
    assert all(variant.steps(problem) == () for variant in Softmax().variants())
