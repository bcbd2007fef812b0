"""Clip: every variant against the definition, and that against onnxruntime."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import harness
import minicnn
from minicnn.ops.clip import CASES, Clip
from minicnn.registry import Problem
from minicnn.step import Operand
from onnx_models import saved, small, value


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


@pytest.mark.parametrize("limit", [np.float32(0.25), np.float32([0.25]), np.float32([[0.25]])])
def test_a_limit_may_be_a_list_of_one(limit, tmp_path):
    initializer = [numpy_helper.from_array(np.asarray(limit), "least")]
    node = helper.make_node("Clip", ["x", "least"], ["y"])
    path = saved(small(nodes=[node], initializer=initializer, inputs=[value("x", (3,))]), tmp_path)
    with minicnn.load(path).plan(device="host") as engine:
        found = engine.run(np.float32([-1, 0.5, 0.1]))["y"]
    np.testing.assert_array_equal(found, np.float32([0.25, 0.5, 0.25]))
