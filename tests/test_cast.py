"""Cast and CastLike: every variant against the definition, and that against onnxruntime."""

import numpy as np
import pytest

import harness
from minicnn.ops.cast import CASES, Cast
from test_unary import run

ALL = [pytest.param(op, *p.values, id=p.id) for op in ("Cast", "CastLike") for p in harness.grid(op)[1]]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_cast(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


def test_types_that_are_not_known():
    with pytest.raises(ValueError, match="to type 16"):
        Cast(to=16)


@pytest.mark.parametrize("device", harness.DEVICES)
def test_float16_of_every_kind_of_float(device):
    """Ties, subnormal numbers, the largest, infinities, NaN: as numpy rounds them."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    with np.errstate(over="ignore"):
        above = np.nextafter(finite.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    between = (finite + above) / 2
    below_ties, at_the_end = np.nextafter(between, np.float32(0)), np.float32([65519.9, 65520, 1e9])
    x = np.concatenate([halves, between, below_ties, at_the_end])
    found = run(Cast(to=10), x, device, "float16")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, x.astype(np.float16))
