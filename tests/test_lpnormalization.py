"""LpNormalization: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.lpnormalization import CASES, LpNormalization


@pytest.mark.parametrize(*harness.grid("LpNormalization"))
def test_lpnormalization(case, variant, device):
    harness.check("LpNormalization", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("LpNormalization", case)


def test_refusals():
    with pytest.raises(ShapeError, match="-2 to 1"):
        LpNormalization(axis=2).infer(TensorType(dtype="float32", shape=(2, 3)))
    with pytest.raises(ValueError, match="p 3"):
        LpNormalization(p=3)
