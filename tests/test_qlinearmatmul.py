"""QLinearMatMul, MatMulInteger: variants against sums in 64 bits, those against onnxruntime."""

import pytest

import harness
from minicnn.errors import UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.qlinearmatmul import CASES, MatMulInteger


@pytest.mark.parametrize(*harness.grids("QLinearMatMul", "MatMulInteger"))
def test_qlinearmatmul(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


def test_zero_points_of_rows_are_left_to_the_fallback():
    a, b, rows = (TensorType(dtype="uint8", shape=shape) for shape in ((5, 19), (19, 3), (5,)))
    with pytest.raises(UnsupportedError, match="rows"):
        MatMulInteger().infer(a, b, rows)
