"""Functions of one number: kernels against the definition, that against onnxruntime, errors over float32."""

import numpy as np
import pytest

import harness
from minicnn.ops import unary
from minicnn.registry import Problem, table
from minicnn.step import Launch, Operand

OPERATORS = [op for (_, op), entry in table().items() if entry.cls.__module__ == unary.__name__]
ALL = [pytest.param(op, *p.values, id=p.id) for op in OPERATORS for p in harness.grid(op)[1]]
# What onnxruntime itself rounds, or approximates: absolute, since its approximations are.
ONNXRUNTIME_ERROR = {
    "Sigmoid": 3e-7, "Tanh": 3e-7, "Erf": 3e-7, "Gelu": 3e-6, "Mish": 2e-6, "Swish": 1e-5, "HardSwish": 1e-6,
    "Elu": 2e-6, "Selu": 3e-6, "Celu": 2e-6, "Softplus": 2e-5, "Exp": 2e-3, "Log": 1e-6, "Softsign": 1e-7,
    "Cosh": 1e-3, "Sinh": 1e-3, "Tan": 1e-5,
}  # fmt: skip
# onnxruntime has no kernel for these.
UNKNOWN_TO_ONNXRUNTIME = {
    "sigmoid, float16", "sigmoid, float16, far out", "hardsigmoid, float16", "hardswish, float16",
    "tanh, float16", "elu, float16", "swish, float16", "gelu, float16",
    "erf, float16", "sqrt, float16", "exp, float16",
    "abs, float16", "reciprocal, float16", "floor, float16",
}  # fmt: skip
WITNESSED = [
    pytest.param(op, case, id=case)
    for op in OPERATORS
    for case in harness.cases(op)
    if case not in UNKNOWN_TO_ONNXRUNTIME
]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_unary(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", WITNESSED)
def test_definition_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case, slack=ONNXRUNTIME_ERROR.get(op, 0.0))


def run(operator, x, device="host", dtype=None):
    """The kernel's answer for a row of numbers, of x's type or another."""
    place = harness.open_device(device)
    y = np.empty_like(x, dtype)
    pointers = {"x": place.alloc(x.nbytes), "y": place.alloc(y.nbytes)}
    place.upload(pointers["x"], x)
    operands = [Operand(name=n, dtype=a.dtype.name, shape=x.shape) for n, a in (("x", x), ("y", y))]
    variant = operator.variants()[0]
    steps = variant.steps(Problem(operator=operator, inputs=(operands[0],), outputs=(operands[1],)))
    place.build([step.kernel for step in steps if isinstance(step, Launch)])
    for step in steps:
        place.prepare(step, lambda view: pointers[view.tensor] + view.byte_offset)()
    place.sync()
    place.download(pointers["y"], y)
    for pointer in pointers.values():
        place.free(pointer)
    return y


def sweep():
    """Every 29,989th float32: all exponents, both signs, infinities' neighbours, subnormal numbers."""
    bits = np.arange(0, 0x7F800000, 29989, dtype=np.uint32)
    return np.concatenate([bits, bits | 0x80000000]).view(np.float32)


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in ("Abs", "Neg", "Sign")])
def test_errors_over_all_of_float32(op, device):
    operator = table()[("", op)].cls()
    x = sweep()
    with np.errstate(all="ignore"):
        exact, bound = operator.reference(x), operator.bound(x)
        found = run(operator, x, device)
        rounded = exact.astype(np.float32)  # beyond float32: infinity
        assert (np.isnan(found) == np.isnan(exact)).all()
        error = np.where((found == rounded) | np.isnan(exact), 0, np.abs(found.astype(np.float64) - exact))
        worst = np.nanargmax(error - bound)
    assert (error <= bound).all(), f"{op}({x[worst]}) = {found[worst]}, not {exact[worst]}"


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("op", OPERATORS)
def test_infinities(op, device):
    x = np.array([np.inf, -np.inf, 0.0, 1.0, -1.0], np.float32)
    operator = table()[("", op)].cls()
    with np.errstate(all="ignore"):
        exact, found = operator.reference(x), run(operator, x, device)
        bound = (operator.ULPS + 1) * unary.ULP * np.abs(exact)
        good = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (np.abs(found - exact) <= bound)
    assert good.all(), f"{found}, not {exact}"


@pytest.mark.parametrize("device", harness.DEVICES)
def test_every_half_survives_the_way_through_float(device):
    """Floor and Neg of all 65,536 halves: reading, computing and rounding lose nothing."""
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    whole = run(unary.Floor(), x, device)
    np.testing.assert_array_equal(whole, np.floor(x))
    np.testing.assert_array_equal(run(unary.Neg(), x, device), -x)


def test_what_gelu_does_not_know():
    with pytest.raises(ValueError, match="sigmoid"):
        unary.Gelu(approximate="sigmoid")
