"""LRN: variants against the definition, the definition against onnxruntime, refusals."""

import numpy as np
import onnx
import onnx.reference
import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.lrn import CASES, LRN


@pytest.mark.parametrize(*harness.grid("LRN"))
def test_lrn(case, variant, device):
    harness.check("LRN", case, variant, device)


@pytest.mark.parametrize(
    "case", [name for name in CASES if name not in ("even size", "1-D")]
)  # onnxruntime has neither
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("LRN", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


def test_an_even_size_leans_to_higher_channels():
    """onnx's evaluator is the witness: it visits as many channels as there are images, hence N = C."""
    x = np.random.default_rng(1).uniform(-1, 1, (7, 7, 2, 3)).astype(np.float32)
    node = onnx.helper.make_node("LRN", ["x"], ["y"], size=4, alpha=1.0, beta=0.75)
    (y,) = onnx.reference.ReferenceEvaluator(node).run(None, {"x": x})
    lrn = CASES["even size"].operator
    err = np.abs(y - lrn.reference(x))
    assert (err <= lrn.bound(x)).all()


@pytest.mark.parametrize(
    "lrn, shape, words", [(LRN(size=0), (1, 3, 4, 5), ["size"]), (LRN(size=5), (3, 4), ["axes", "(3, 4)"])]
)
def test_refusals(lrn, shape, words):
    with pytest.raises(ShapeError) as refused:
        lrn.infer(*_types(shape))
    assert all(word in str(refused.value) for word in words), str(refused.value)
