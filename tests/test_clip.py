"""Clip against its definition."""

import pytest

import harness
from minicnn.ops.clip import CASES


@pytest.mark.parametrize(*harness.grid("Clip"))
def test_clip(case, variant, device):
    harness.check("Clip", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_clip_agrees_with_onnxruntime(case):
    harness.onnx_witness("Clip", case)
