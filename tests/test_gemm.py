"""Gemm: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.gemm import CASES, Gemm


@pytest.mark.parametrize(*harness.grid("Gemm"))
def test_gemm(case, variant, device):
    harness.check("Gemm", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Gemm", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "gemm, shapes, words",
    [
        (Gemm(), [(3, 4), (5, 6)], ["tensor: b", "(4, 6)", "(5, 6)"]),
        (Gemm(transB=1), [(3, 4), (5, 6)], ["tensor: b", "(5, 4)", "(5, 6)"]),
        (Gemm(), [(3, 4, 1), (4, 6)], ["not matrices", "(3, 4, 1)"]),
        (Gemm(), [(3, 4), (4, 6), (3,)], ["tensor: c", "(3, 6)", "(3,)"]),
        (Gemm(), [(1, 4), (4, 6), (2, 6)], ["tensor: c", "(1, 6)", "(2, 6)"]),
    ],
)
def test_matrices_that_do_not_fit_are_refused_by_name(gemm, shapes, words):
    with pytest.raises(ShapeError) as refused:
        gemm.infer(*_types(*shapes))
    assert all(word in str(refused.value) for word in words), str(refused.value)
