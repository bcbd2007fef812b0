"""Pad against its definition."""

import pytest

import harness
from minicnn.ops.pad import CASES


@pytest.mark.parametrize(*harness.grid("Pad"))
def test_pad(case, variant, device):
    harness.check("Pad", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_pad_agrees_with_onnxruntime(case):
    harness.onnx_witness("Pad", case)
