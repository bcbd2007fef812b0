"""Slice, Split, Expand and Tile: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.slice import Expand, Slice, Split, Tile

OPERATORS = ("Slice", "Split", "Expand", "Tile")
ALL = [pytest.param(op, *p.values, id=p.id) for op in OPERATORS for p in harness.grid(op)[1]]
# Since opset 18 `num_outputs` must be there.
EVEN = ("split, channels in halves", "split, rows", "split, batches")
WITNESSED = [
    pytest.param(op, case, id=case) for op in OPERATORS for case in harness.cases(op) if case not in EVEN
]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_moves(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", WITNESSED)
def test_definition_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)


@pytest.mark.parametrize(
    "operator, shape, words",
    [
        (Slice(starts=(0,), ends=(1, 2)), (2, 3), "differ in number"),
        (Slice(starts=(0,), ends=(1,), axes=(2,)), (2, 3), "aren't there"),
        (Slice(starts=(0, 0), ends=(1, 1), axes=(1, -1)), (2, 3), "named twice"),
        (Slice(starts=(0,), ends=(1,), steps=(0,)), (2, 3), "step of 0"),
        (Split(outputs=2), (3, 2), "evenly"),
        (Split(outputs=2, split=(1, 1)), (3, 2), "make up"),
        (Split(outputs=2, split=(1, 1, 1)), (3, 2), "make up"),
        (Split(outputs=2, axis=2), (3, 2), "axis"),
        (Expand(shape=(2, 4)), (2, 3), "broadcast"),
        (Tile(repeats=(2,)), (2, 3), "repeats"),
        (Tile(repeats=(2, -1)), (2, 3), "repeats"),
    ],
)
def test_refusals(operator, shape, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(TensorType(dtype="float32", shape=shape))


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_attributes_and_inputs_mean_the_same(opset, monkeypatch):
    """Slice and Split before and after their attributes became inputs, Split with neither."""
    monkeypatch.setattr(harness, "_opset", lambda op, case: opset)
    harness.onnx_witness("Slice", "slice, rows and columns")
    for case in ("split, channels, odd parts", *EVEN):
        harness.onnx_witness("Split", case)


