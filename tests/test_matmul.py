"""MatMul: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.matmul import CASES, MatMul
from minicnn.step import Gemm


@pytest.mark.parametrize(*harness.grid("MatMul"))
def test_matmul(case, variant, device):
    harness.check("MatMul", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("MatMul", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "shapes, words",
    [
        ([(3, 4), (5, 6)], ["(3, 4)", "(5, 6)"]),
        ([(2, 3, 4), (3, 4, 6)], ["(2, 3, 4)", "(3, 4, 6)"]),
        ([(), (5, 6)], ["scalar"]),
        ([(3, 4), (4, 6), (3,)], ["tensor: bias", "(6,)", "(3,)"]),
    ],
)
def test_matrices_that_do_not_fit_are_refused_by_name(shapes, words):
    with pytest.raises(ShapeError) as refused:
        MatMul().infer(*_types(*shapes))
    assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize(
    "case, products",
    [
        ("batches", 1),
        ("batched rows, one matrix", 1),
        ("batches stretched on both sides", 2),
        ("batches stretched in the middle", 6),
    ],
)
def test_batches_take_few_products(case, products):
    problem = harness.problem("MatMul", case)
    (blas,) = (v for v in problem.operator.variants() if v.name == "blas")
    assert sum(isinstance(step, Gemm) for step in blas.steps(problem)) == products
