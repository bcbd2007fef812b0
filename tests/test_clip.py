"""Clip: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.ops.clip import CASES, Clip
from minicnn.registry import Problem
from minicnn.step import Operand


@pytest.mark.parametrize(*harness.grid("Clip"))
def test_clip(case, variant, device):
    harness.check("Clip", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Clip", case)


def test_nothing_to_do():
    x, y = (Operand(name=name, dtype="float32", shape=(0, 3, 2, 2)) for name in "xy")
    problem = Problem(operator=Clip(), inputs=(x,), outputs=(y,))
    assert all(variant.steps(problem) == () for variant in Clip().variants())


def test_a_limit_may_be_a_list_of_one():
    assert Clip(min=(0.0,), max=6).limits() == (0.0, 6.0)
