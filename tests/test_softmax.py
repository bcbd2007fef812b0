"""Softmax against its definition."""

import pytest

import harness
from minicnn.ops.softmax import CASES


@pytest.mark.parametrize(*harness.grid("Softmax"))
def test_softmax(case, variant, device):
    harness.check("Softmax", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_softmax_agrees_with_onnxruntime(case):
    harness.onnx_witness("Softmax", case)
