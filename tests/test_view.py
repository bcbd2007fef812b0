"""Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout: definitions, onnxruntime, and y as x's memory."""

import numpy as np
import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.geometry import NHWC, Layout
from minicnn.graph import Graph, Node, TensorType
from minicnn.lab.checking import problem_of
from minicnn.ops.view import Dropout, Flatten, Reshape, Squeeze, Unsqueeze
from minicnn.planner import view_layout
from minicnn.registry import bind
from minicnn.step import Operand

OPERATORS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
ALL = [pytest.param(op, *p.values, id=f"{op}-{p.id}") for op in OPERATORS for p in harness.grid(op)[1]]


@pytest.mark.parametrize("op, case, variant, device", ALL)
def test_view(op, case, variant, device):
    harness.check(op, case, variant, device)


@pytest.mark.parametrize("op, case", [(op, case) for op in OPERATORS for case in harness.cases(op)])
def test_definition_agrees_with_onnxruntime(op, case):
    harness.onnx_witness(op, case)


def _problem(operator, shape):
    x = Operand(name="x", dtype="float32", shape=shape)
    (y,) = operator.infer(TensorType(dtype="float32", shape=shape))
    return problem_of(operator, (x,), (Operand(name="y", dtype="float32", shape=y.extents),))


@pytest.mark.parametrize("layout", [NHWC, Layout(order="NHWC", channel_pad=16, channel_stride=48, offset=16)])
@pytest.mark.parametrize(
    "operator, shape",
    [(Flatten(), (2, 5, 1, 1)), (Squeeze(axes=(2, 3)), (2, 5, 1, 1)), (Unsqueeze(axes=(2, 3)), (2, 5)),
     (Reshape(shape=(0, 0, -1)), (2, 5, 3, 4))],
)  # fmt: skip
def test_pixels_stay_where_they_are(operator, shape, layout):
    problem = _problem(operator, shape)
    assert operator.variants()[0].orders(problem).inputs == ("any",)
    x = problem.x.with_layout(layout)
    y = problem.y.with_layout(view_layout(x, problem.y))
    memory = np.arange(4096, dtype=np.float32)

    def seen(operand):
        strides = [4 * stride for stride in operand.strides]
        start = memory[operand.view().byte_offset // 4 :]
        return np.lib.stride_tricks.as_strided(start, operand.shape, strides)

    np.testing.assert_array_equal(seen(y), seen(x).reshape(y.shape))


@pytest.mark.parametrize(
    "operator, shape", [(Flatten(), (2, 5, 3, 4)), (Squeeze(), (1, 5, 1, 1)), (Flatten(), (7,))]
)
def test_other_shapes_need_row_major_memory(operator, shape):
    assert operator.variants()[0].orders(_problem(operator, shape)).inputs == ("NCHW",)


@pytest.mark.parametrize(
    "operator, shape, words",
    [
        (Reshape(shape=(4, 5)), (2, 3), "another number of elements"),
        (Reshape(shape=(-1, 4)), (2, 3), "no whole number"),
        (Reshape(shape=(-1, -1)), (2, 3), "more than one open"),
        (Reshape(shape=(2, 3, 0)), (2, 3), "a 0 where"),
        (Flatten(axis=3), (2, 3), "-2 to 2"),
        (Squeeze(axes=(1,)), (2, 3), "longer than 1"),
        (Unsqueeze(axes=(4,)), (2, 3), "axes that aren't there"),
        (Unsqueeze(axes=(0, -4)), (2, 3), "named twice"),
    ],
)
def test_refusals(operator, shape, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(TensorType(dtype="float32", shape=shape))


def test_reshape_to_a_scalar():
    (y,) = Reshape(shape=()).infer(TensorType(dtype="float32", shape=(1, 1)))
    assert y.shape == ()


def test_dropouts_mask_is_refused():
    problem = _problem(Dropout(), (2, 3))
    mask = Operand(name="mask", dtype="bool", shape=(2, 3))
    with_mask = problem_of(Dropout(), problem.inputs, (*problem.outputs, mask))
    assert "mask" in Dropout().variants()[0].applies(with_mask)


def test_dropout_while_training_is_refused():
    node = Node(name="d", op="Dropout", inputs=("x", "", "training"), outputs=("y",))
    graph = Graph(
        name="g", file="", sha256="", opsets={"": 13}, inputs=("x",), outputs=("y",), nodes=(node,), types={},
        constants={"training": np.array(True)},
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="training_mode"):
        bind(node, graph)
