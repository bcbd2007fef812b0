"""Concat: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.concat import CASES, Concat


@pytest.mark.parametrize(*harness.grid("Concat"))
def test_concat(case, variant, device):
    harness.check("Concat", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Concat", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (Concat(axis=2), [(2, 3), (2, 3)], "the axis isn't"),
        (Concat(axis=1), [(2, 3), (3, 3)], "not only along the axis"),
        (Concat(axis=0), [(2, 3), (2, 3, 1)], "not only along the axis"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))
