"""Reshape, Flatten, Squeeze, Unsqueeze, Identity and Dropout against their definitions."""

import pytest

import harness

OPERATORS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
ALL = [pytest.param(op, *values.values, id=f"{op}-{values.id}") for op in OPERATORS for values in harness.grid(op)[1]]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_view(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", [(op, case) for op in OPERATORS for case in harness.cases(op)])
def test_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)
