"""Relu: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.ops.relu import CASES, Relu
from minicnn.registry import Problem
from minicnn.step import Operand


@pytest.mark.parametrize(*harness.grid("Relu"))
def test_relu(case, variant, device):
    harness.check("Relu", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Relu", case)


def test_nothing_to_do():
    x, y = (Operand(name=name, dtype="float32", shape=(0, 3, 2, 2)) for name in "xy")
    problem = Problem(operator=Relu(), inputs=(x,), outputs=(y,))
    assert all(variant.steps(problem) == () for variant in Relu().variants())
