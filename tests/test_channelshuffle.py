"""ChannelShuffle: every variant against the definition, ONNX's nodes for it against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import harness
import minicnn
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.channelshuffle import ChannelShuffle

ort = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(*harness.grid("ChannelShuffle"))
def test_channelshuffle(case, variant, device):
    harness.check("ChannelShuffle", case, variant, device)


def test_channels_that_no_groups_share_are_refused():
    with pytest.raises(ShapeError, match="multiple of 4"):
        ChannelShuffle(group=4).infer(TensorType(dtype="float32", shape=(1, 6, 2, 2)))


@pytest.mark.parametrize(
    "middle, perm, expected",
    [
        ((1, 4, 5, 3, 2), (0, 2, 1, 3, 4), "ChannelShuffle"),
        ((1, 4, 5, 3, 2), (0, 1, 2, 4, 3), "Transpose"),
        ((1, 20, 1, 3, 2), (0, 2, 1, 3, 4), "ChannelShuffle"),
        ((1, 20, 3, 2, 1), (0, 2, 1, 3, 4), "Transpose"),
    ],
)
def test_only_a_shuffle_of_channels_becomes_one(middle, perm, expected, tmp_path):
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=perm),
        helper.make_node("Reshape", ["b", "joined"], ["y"]),
    ]
    shape = [1, 20, 3, 2]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    constants = {"split": middle, "joined": shape}
    initial = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "shuffle", info[:1], info[1:], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "shuffle.onnx")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (exact,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with minicnn.load(tmp_path / "shuffle.onnx").plan(device="host", threads=1) as engine:
        assert expected in [layer.op for layer in engine.plan.layers]
        np.testing.assert_array_equal(engine.run(x)["y"], exact)
