"""Comparisons, logic and Where: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops import compare
from minicnn.registry import table

OPERATORS = [op for (_, op), entry in table().items() if entry.cls.__module__ == compare.__name__]
ALL = [pytest.param(op, *p.values, id=p.id) for op in OPERATORS for p in harness.grid(op)[1]]
BEFORE_ONNXRUNTIME = {"less, at an axis"}  # opset 6: it starts at 7
UNKNOWN_TO_ONNXRUNTIME = {"greater, float16", "where, float16", "where, bools"}
WITNESSED = [
    pytest.param(op, case, id=case)
    for op in OPERATORS
    for case in harness.cases(op)
    if case not in BEFORE_ONNXRUNTIME | UNKNOWN_TO_ONNXRUNTIME
]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_compare(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", WITNESSED)
def test_definition_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)


@pytest.mark.parametrize(
    "operator, types, words",
    [
        (compare.Less(), [("float32", (2, 3)), ("float32", (2,))], "broadcast"),
        (compare.Where(), [("bool", (2, 3)), ("float32", (2,)), ("float32", (3,))], "broadcast"),
        (compare.Where(), [("bool", (2, 3)), ("float32", (3,)), ("int64", (3,))], "two types"),
    ],
)
def test_refusals(operator, types, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype=dtype, shape=shape) for dtype, shape in types))
