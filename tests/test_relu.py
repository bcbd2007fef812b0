"""Relu against its definition."""

import pytest

import harness
from minicnn.ops.relu import CASES


@pytest.mark.parametrize(*harness.grid("Relu"))
def test_relu(case, variant, device):
    harness.check("Relu", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_relu_agrees_with_onnxruntime(case):
    harness.onnx_witness("Relu", case)
