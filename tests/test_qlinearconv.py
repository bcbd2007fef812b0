"""QLinearConv, ConvInteger: variants against sums in 64 bits, those against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.qlinearconv import CASES, ConvInteger


@pytest.mark.parametrize(*harness.grids("QLinearConv", "ConvInteger"))
def test_qlinearconv(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


def test_what_does_not_fit_is_refused_by_name():
    x, w = (TensorType(dtype="uint8", shape=shape) for shape in ((1, 4, 5, 5), (3, 2, 3, 3)))
    with pytest.raises(ShapeError, match="groups"):
        ConvInteger().infer(x, w)
    with pytest.raises(UnsupportedError, match="axes"):
        ConvInteger().infer(x, TensorType(dtype="uint8", shape=(3, 4, 3, 3, 3)))
