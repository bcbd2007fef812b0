"""Pad: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.pad import CASES, Pad
from minicnn.registry import Case


@pytest.mark.parametrize(*harness.grid("Pad"))
def test_pad(case, variant, device):
    harness.check("Pad", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Pad", case)


@pytest.mark.parametrize(
    "operator, shapes, words",
    [
        (Pad(pads=(1, 1)), [(2, 3)], "don't fit"),
        (Pad(pads=(1, 1), axes=(2,)), [(2, 3)], "don't fit"),
        (Pad(pads=(0, -2, 0, -2)), [(2, 3)], "cut off more"),
    ],
)
def test_refusals(operator, shapes, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


def test_modes_that_are_not_known():
    with pytest.raises(ValueError, match="mirror"):
        Pad(pads=(0, 0), mode="mirror")


@pytest.mark.parametrize("mode, width", [("reflect", 3), ("wrap", 4)])
def test_frames_wider_than_the_tensor_are_refused(mode, width, monkeypatch):
    case = Case(operator=Pad(pads=(0, width), mode=mode), shapes=((3,),))
    monkeypatch.setitem(CASES, "wide", case)
    problem = harness.problem("Pad", "wide")
    assert "are there" in case.operator.variants()[1].applies(problem)
