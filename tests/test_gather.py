"""Gather: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.gather import CASES, Gather


@pytest.mark.parametrize(*harness.grid("Gather"))
def test_gather(case, variant, device):
    harness.check("Gather", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Gather", case)


@pytest.mark.parametrize(
    "operator, types, words",
    [
        (Gather(axis=2), [("float32", (2, 3)), ("int64", (2,))], "axis"),
        (Gather(), [("float32", (2, 3)), ("float32", (2,))], "integers"),
    ],
)
def test_refusals(operator, types, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype=dtype, shape=shape) for dtype, shape in types))
