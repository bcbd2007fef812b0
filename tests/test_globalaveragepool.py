"""GlobalAveragePool: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.globalaveragepool import CASES, GlobalAveragePool


@pytest.mark.parametrize(*harness.grid("GlobalAveragePool"))
def test_globalaveragepool(case, variant, device):
    harness.check("GlobalAveragePool", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("GlobalAveragePool", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


def test_too_few_axes_are_refused():
    with pytest.raises(ShapeError, match="axes"):
        GlobalAveragePool().infer(*_types((3, 4)))
