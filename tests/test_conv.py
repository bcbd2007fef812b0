"""Conv: variants against the definition, the definition against onnxruntime, refusals."""

import harness
import pytest

from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.conv import CASES, Conv


@pytest.mark.parametrize(*harness.grid("Conv"))
def test_conv(case, variant, device):
    harness.check("Conv", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Conv", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "conv, shapes, words",
    [
        (Conv(), [(1, 3, 4, 9), (8, 3, 5, 3)], ["along H", "at least 5", "found: 4"]),
        (Conv(dilations=(1, 4)), [(1, 3, 9, 7), (8, 3, 3, 3)], ["along W", "at least 9"]),
        (Conv(group=2), [(1, 3, 9, 9), (8, 3, 3, 3)], ["groups", "(8, 3, 3, 3)"]),
        (Conv(kernel_shape=(5, 5)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["kernel_shape", "(5, 5)", "(3, 3)"]),
        (Conv(pads=(1, 1)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["pads", "4 numbers"]),
        (Conv(strides=(0, 1)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["strides", "above 0"]),
        (Conv(), [(1, 3, 9, 9), (8, 3, 3, 3), (7,)], ["bias", "(8,)", "(7,)"]),
        (Conv(), [(1, 3, 9), (8, 3, 3, 3)], ["axes", "(1, 3, 9)"]),
        (Conv(auto_pad="SAME"), [(1, 3, 9, 9), (8, 3, 3, 3)], ["auto_pad", "SAME_UPPER"]),
    ],
)
def test_impossible_windows_are_refused_by_name(conv, shapes, words):
    with pytest.raises(ShapeError) as refused:
        conv.infer(*_types(*shapes))
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_4d_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="4-D"):
        Conv().infer(*_types((1, 3, 9, 9, 9, 9), (8, 3, 3, 3, 3, 3)))


@pytest.mark.parametrize(
    "case, variant, reason",
    [
        ("strides differ", "gemm1x1", "3x3"),
        ("1x1 with a stride", "gemm1x1", "strides or pads"),
        ("groups", "depthwise", "3 groups"),
        ("depthwise with a multiplier", "depthwise", "34 output channels"),
        ("weights and bias at run time", "im2col", "run time"),
    ],
)
def test_variants_say_why_not(case, variant, reason):
    problem = harness.problem("Conv", case)
    (chosen,) = (v for v in problem.operator.variants() if v.name == variant)
    assert reason in chosen.applies(problem)


def test_slabs_bound_the_workspace():
    problem = harness.problem("Conv", "several slabs")
    (im2col,) = (v for v in problem.operator.variants() if v.name == "im2col")
    whole = 4 * 3 * 34 * 41 * 48 * 5 * 5
    assert whole / 6 < im2col.workspace_bytes(problem) <= 4 << 20 < whole
