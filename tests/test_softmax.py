"""Softmax: every variant against the definition, and that against onnxruntime."""

import harness
import pytest

from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.softmax import CASES, Softmax
from minicnn.registry import Problem
from minicnn.step import Operand


@pytest.mark.parametrize(*harness.grid("Softmax"))
def test_softmax(case, variant, device):
    harness.check("Softmax", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Softmax", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (Softmax(axis=2), [(2, 3)], "-2 to 1"),
        (Softmax(axis=-3), [(2, 3)], "-2 to 1"),
        (Softmax(opset=9, axis=2), [(2, 3)], "-2 to 1"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


def test_nothing_to_do():
    x, y = (Operand(name=name, dtype="float32", shape=(0, 3, 2, 2)) for name in "xy")
    problem = Problem(operator=Softmax(), inputs=(x,), outputs=(y,))
    assert all(variant.steps(problem) == () for variant in Softmax().variants())
