"""Transpose against its definition."""

import pytest

import harness
from minicnn.ops.transpose import CASES


@pytest.mark.parametrize(*harness.grid("Transpose"))
def test_transpose(case, variant, device):
    harness.check("Transpose", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_transpose_agrees_with_onnxruntime(case):
    harness.onnx_witness("Transpose", case)
