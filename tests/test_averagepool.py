"""AveragePool: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.averagepool import CASES, AveragePool


@pytest.mark.parametrize(*harness.grid("AveragePool"))
def test_averagepool(case, variant, device):
    harness.check("AveragePool", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("AveragePool", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "pool, shape, words",
    [
        (AveragePool(kernel_shape=(5, 3)), (1, 3, 4, 9), ["along H", "at least 5", "found: 4"]),
        (AveragePool(kernel_shape=(2, 3), dilations=(1, 4)), (1, 3, 9, 7), ["along W", "at least 9"]),
        (AveragePool(kernel_shape=(3,)), (1, 3, 9, 9), ["kernel_shape", "2 numbers", "(3,)"]),
        (AveragePool(), (1, 3, 9, 9), ["kernel_shape", "()"]),
        (AveragePool(kernel_shape=(3, 3), pads=(0, 0, -1, 0)), (1, 3, 9, 9), ["pads", "0 or more"]),
        (AveragePool(kernel_shape=(3, 3), auto_pad="SAME"), (1, 3, 9, 9), ["auto_pad", "SAME_UPPER"]),
        (AveragePool(kernel_shape=(3, 3)), (9, 9), ["axes", "(9, 9)"]),
    ],
)
def test_impossible_windows_are_refused_by_name(pool, shape, words):
    with pytest.raises(ShapeError) as refused:
        pool.infer(*_types(shape))
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_4d_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="4-D"):
        AveragePool(kernel_shape=(2, 2, 2, 2)).infer(*_types((1, 3, 9, 9, 9, 9)))
