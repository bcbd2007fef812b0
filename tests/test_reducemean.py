"""ReduceMean: every variant against the definition, and that against onnxruntime."""

import harness
import pytest

from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.reducemean import CASES, ReduceMean


@pytest.mark.parametrize(*harness.grid("ReduceMean"))
def test_reducemean(case, variant, device):
    harness.check("ReduceMean", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("ReduceMean", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (ReduceMean(axes=(2,)), [(2, 3)], "-2 to 1"),
        (ReduceMean(axes=(0, -3)), [(2, 3)], "-2 to 1"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))
