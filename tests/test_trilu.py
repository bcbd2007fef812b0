"""Trilu: every variant against the definition, and that against onnxruntime."""

import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.trilu import CASES, Trilu


@pytest.mark.parametrize(*harness.grid("Trilu"))
def test_trilu(case, variant, device):
    harness.check("Trilu", case, variant, device)


@pytest.mark.parametrize("case", [name for name in CASES if name != "float16"])  # unknown to onnxruntime
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Trilu", case)


def test_no_matrix():
    with pytest.raises(ShapeError, match="matrix"):
        Trilu().infer(TensorType(dtype="float32", shape=(3,)))
