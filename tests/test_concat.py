"""Concat against its definition."""

import pytest

import harness
from minicnn.ops.concat import CASES


@pytest.mark.parametrize(*harness.grid("Concat"))
def test_concat(case, variant, device):
    harness.check("Concat", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_concat_agrees_with_onnxruntime(case):
    harness.onnx_witness("Concat", case)
