"""ReduceMean against its definition."""

import pytest

import harness
from minicnn.ops.reducemean import CASES


@pytest.mark.parametrize(*harness.grid("ReduceMean"))
def test_reducemean(case, variant, device):
    harness.check("ReduceMean", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_reducemean_agrees_with_onnxruntime(case):
    harness.onnx_witness("ReduceMean", case)
