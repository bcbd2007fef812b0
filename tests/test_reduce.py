"""The Reduce family, ArgMax, ArgMin: variants against the definition, the definition against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops import argmax, reduce
from minicnn.ops.argmax import ArgMax
from minicnn.ops.reduce import ReduceMean, ReduceSum

CASES = reduce.CASES | argmax.CASES
OPERATORS = sorted({type(case.operator).__name__ for case in CASES.values()})


@pytest.mark.parametrize(*harness.grids(*OPERATORS))
def test_reduce(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


@pytest.mark.parametrize(
    "operator, shape, words",
    [
        (ReduceMean(axes=(2,)), (2, 3), "-2 to 1"),
        (ReduceSum(axes=(0, -3)), (2, 3), "-2 to 1"),
        (ArgMax(axis=2), (2, 3), "-2 to 1"),
        (ArgMax(axis=0), (0, 3), "empty"),
    ],
)
def test_refusals(operator, shape, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(TensorType(dtype="float32", shape=shape))
