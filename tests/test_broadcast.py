"""Add, Sub, Mul, Div, Sum and PRelu against their definitions."""

import pytest

import harness
from minicnn.ops.broadcast import CASES

OPERATORS = ("Add", "Sub", "Mul", "Div", "Sum", "PRelu")
NAMES, GRIDS = "case, variant, device", {op: harness.grid(op)[1] for op in OPERATORS}
ALL = [pytest.param(op, *values.values, id=f"{op}-{values.id}") for op, grid in GRIDS.items() for values in grid]


@pytest.mark.parametrize(f"op, {NAMES}", ALL)
def test_broadcast(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", [(op, case) for op in OPERATORS for case in harness.cases(op)])
def test_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)
