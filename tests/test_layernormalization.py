"""LayerNormalization: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.layernormalization import CASES, LayerNormalization


@pytest.mark.parametrize(*harness.grid("LayerNormalization"))
def test_layernormalization(case, variant, device):
    harness.check("LayerNormalization", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("LayerNormalization", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (LayerNormalization(axis=2), [(2, 3), (3,)], "-2 to 1"),
        (LayerNormalization(), [(2, 3), (2,)], "doesn't broadcast"),
        (LayerNormalization(), [(2, 3), (2, 3)], "doesn't broadcast"),
        (LayerNormalization(), [(2, 3), (3,), (2,)], "tensor: B"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


def test_float64_sums_are_refused():
    with pytest.raises(ValueError, match="stash_type 11"):
        LayerNormalization(stash_type=11)
