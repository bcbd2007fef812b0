"""Transpose: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.transpose import CASES, Transpose


@pytest.mark.parametrize(*harness.grid("Transpose"))
def test_transpose(case, variant, device):
    harness.check("Transpose", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Transpose", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (Transpose(perm=(0, 0)), [(2, 3)], "permutation"),
        (Transpose(perm=(0, 1, 2)), [(2, 3)], "permutation"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))
