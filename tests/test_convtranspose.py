"""ConvTranspose: variants against the definition, the definition against onnxruntime, refusals."""

import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.convtranspose import CASES, ConvTranspose


@pytest.mark.parametrize(*harness.grid("ConvTranspose"))
def test_convtranspose(case, variant, device):
    harness.check("ConvTranspose", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("ConvTranspose", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "conv, shapes, words",
    [
        (ConvTranspose(pads=(4, 0, 5, 0)), [(1, 3, 3, 9), (3, 8, 3, 3)], ["nothing is left", "(4, 5)"]),
        (ConvTranspose(), [(1, 4, 9, 9), (3, 8, 3, 3)], ["channels", "(3, 8, 3, 3)"]),
        (ConvTranspose(group=2), [(1, 3, 9, 9), (3, 8, 3, 3)], ["groups"]),
        (ConvTranspose(kernel_shape=(5, 5)), [(1, 3, 9, 9), (3, 8, 3, 3)], ["kernel_shape", "(3, 3)"]),
        (ConvTranspose(output_padding=(1,)), [(1, 3, 9, 9), (3, 8, 3, 3)], ["output_padding", "2 numbers"]),
        (ConvTranspose(output_shape=(1,)), [(1, 3, 9, 9), (3, 8, 3, 3)], ["output_shape", "2 numbers"]),
        (ConvTranspose(strides=(0, 1)), [(1, 3, 9, 9), (3, 8, 3, 3)], ["strides", "above 0"]),
        (ConvTranspose(), [(1, 3, 9, 9), (3, 8, 3, 3), (7,)], ["bias", "(8,)", "(7,)"]),
        (ConvTranspose(), [(1, 3, 9), (3, 8, 3, 3)], ["axes", "(1, 3, 9)"]),
        (ConvTranspose(auto_pad="SAME"), [(1, 3, 9, 9), (3, 8, 3, 3)], ["auto_pad", "SAME_UPPER"]),
    ],
)
def test_impossible_windows_are_refused_by_name(conv, shapes, words):
    with pytest.raises(ShapeError) as refused:
        conv.infer(*_types(*shapes))
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_4d_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="4-D"):
        ConvTranspose().infer(*_types((1, 3, 9, 9, 9, 9), (3, 8, 3, 3, 3, 3)))


def test_slabs_bound_the_workspace():
    problem = harness.problem("ConvTranspose", "several slabs, windows overlap")
    (col2im,) = (v for v in problem.operator.variants() if v.name == "col2im")
    whole = 4 * 60 * 70 * 33 * 5 * 5
    assert whole / 6 < col2im.workspace_bytes(problem) <= 4 << 20 < whole
