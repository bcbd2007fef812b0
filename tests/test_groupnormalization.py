"""Instance-, Group-, MeanVarianceNormalization: variants against the definition, that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.groupnormalization import (
    CASES,
    GroupNormalization,
    InstanceNormalization,
    MeanVarianceNormalization,
)
from minicnn.registry import Problem
from minicnn.step import Operand

OPERATORS = ("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization")


@pytest.mark.parametrize(*harness.grids(*OPERATORS))
def test_normalization(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


@pytest.mark.parametrize("axes", [(0, 1), (1, 3), (3, 0)])
def test_other_axes_are_left_to_the_fallback(axes):
    operator = MeanVarianceNormalization(axes=axes)
    x = Operand(name="x", dtype="float32", shape=(2, 3, 4, 5))
    problem = Problem(operator=operator, inputs=(x,), outputs=(x,))
    assert all("averages over" in variant.applies(problem) for variant in operator.variants())


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (InstanceNormalization(), [(1, 3, 4), (3,), (4,)], "one number"),
        (InstanceNormalization(), [(1, 3), (3,), (3,)], "too few axes"),
        (GroupNormalization(num_groups=2), [(1, 3, 4), (3,), (3,)], "multiple of 2"),
        (GroupNormalization(num_groups=0), [(1, 3, 4), (3,), (3,)], "groups"),
        (GroupNormalization(num_groups=1, opset=18), [(1, 3, 4), (3,), (3,)], r"\(1,\)"),
        (MeanVarianceNormalization(axes=(0, 4)), [(1, 3, 4, 4)], "-4 to 3"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))
