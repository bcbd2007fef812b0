"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: variants, onnxruntime, halves, saturation."""

import numpy as np
import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.quantizelinear import CASES, QuantizeLinear

OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


@pytest.mark.parametrize(*harness.grids(*OPS))
def test_quantizelinear(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


def test_halves_go_to_the_even_number_and_ends_saturate():
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, np.inf, -np.inf, np.nan])
    found = QuantizeLinear().reference(x, np.float32(1), np.uint8(10))
    np.testing.assert_array_equal(found, np.uint8([10, 12, 12, 10, 8, 255, 0, 255, 0, 0]))


def test_what_does_not_fit_is_refused_by_name():
    x, scales = TensorType(dtype="float32", shape=(2, 5)), TensorType(dtype="float32", shape=(4,))
    with pytest.raises(ShapeError, match="axis 1"):
        QuantizeLinear().infer(x, scales)
    with pytest.raises(UnsupportedError, match="blocks"):
        QuantizeLinear(block_size=2).infer(x, scales)
