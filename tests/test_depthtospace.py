"""DepthToSpace, SpaceToDepth: every variant against the definition, and that against onnxruntime."""

import numpy as np
import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.depthtospace import CASES, DepthToSpace, SpaceToDepth

NEWER_THAN_ONNXRUNTIME = "gathered, the channel first"  # held by test_one_undoes_the_other


@pytest.mark.parametrize(*harness.grid("DepthToSpace"))
def test_depthtospace(case, variant, device):
    harness.check("DepthToSpace", case, variant, device)


@pytest.mark.parametrize(*harness.grid("SpaceToDepth"))
def test_spacetodepth(case, variant, device):
    harness.check("SpaceToDepth", case, variant, device)


@pytest.mark.parametrize("case", [name for name in CASES if name != NEWER_THAN_ONNXRUNTIME])
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness(type(CASES[case].operator).__name__, case)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_one_undoes_the_other(mode):
    x = np.arange(2 * 12 * 3 * 5).reshape(2, 12, 3, 5)
    spread = DepthToSpace(blocksize=2, mode=mode).reference(x)
    np.testing.assert_array_equal(SpaceToDepth(blocksize=2, mode=mode).reference(spread), x)


@pytest.mark.parametrize(
    "operator, shape, words",
    [
        (DepthToSpace(blocksize=2), (1, 6, 3, 3), "multiples of 4"),
        (SpaceToDepth(blocksize=2), (1, 6, 4, 3), "multiples of 2"),
        (SpaceToDepth(blocksize=2), (1, 6, 4), "N, C, H, W"),
        (DepthToSpace(blocksize=0), (1, 6, 4, 4), "1 or more"),
    ],
)
def test_refusals(operator, shape, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(TensorType(dtype="float32", shape=shape))


def test_other_modes_are_refused():
    with pytest.raises(ValueError, match="CRD"):
        DepthToSpace(blocksize=2, mode="RCD")
