"""LpPool, GlobalLpPool, GlobalMaxPool: variants against the definition, that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.lppool import CASES, GlobalLpPool, GlobalMaxPool, LpPool

OPERATORS = ("LpPool", "GlobalLpPool", "GlobalMaxPool")


@pytest.mark.parametrize(*harness.grids(*OPERATORS))
def test_pooling(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


@pytest.mark.parametrize(
    "pool, shape, words",
    [
        (LpPool(kernel_shape=(5, 3)), (1, 3, 4, 9), "along H"),
        (LpPool(), (1, 3, 4, 9), "kernel_shape"),
        (GlobalMaxPool(), (3, 4), "too few axes"),
        (GlobalMaxPool(), (3, 4, 0), "an empty one"),
    ],
)
def test_refusals(pool, shape, words):
    with pytest.raises(ShapeError, match=words):
        pool.infer(TensorType(dtype="float32", shape=shape))


def test_other_norms_of_images_are_refused():
    with pytest.raises(ValueError, match="p 3"):
        GlobalLpPool(p=3)
