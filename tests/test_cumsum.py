"""CumSum: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.cumsum import CASES, CumSum


@pytest.mark.parametrize(*harness.grid("CumSum"))
def test_cumsum(case, variant, device):
    harness.check("CumSum", case, variant, device)


@pytest.mark.parametrize("case", [name for name in CASES if name != "float16"])  # unknown to onnxruntime
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("CumSum", case, slack=2e-6)


def test_an_axis_that_is_not_there():
    with pytest.raises(ShapeError, match="axis"):
        CumSum(axis=-3).infer(TensorType(dtype="float32", shape=(2, 3)))
