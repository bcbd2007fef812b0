"""QDQ networks: which layers become integers, how far those are from the definition, and from onnxruntime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import harness
import minicnn
from minicnn.quantization import fold, join
from onnx_models import named
from test_models import build

quantization = pytest.importorskip("onnxruntime.quantization")
on_every_device = pytest.mark.parametrize("device", harness.DEVICES)
SIZE = 33


class Pictures(quantization.CalibrationDataReader):
    """Four seeded ones, to find the ranges of tensors."""

    def __init__(self) -> None:
        self.left = [
            {"x": np.random.default_rng(i).uniform(-1, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
            for i in range(4)
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def quantised(name: str, folder: Path, *, per_channel: bool, activations: str) -> Path:
    """As onnxruntime quantises a network: batch normalisation folded, then ranges from four pictures."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready, path = (folder / f"{name}{ending}.onnx" for ending in ("", "_ready", "_qdq"))
    onnx.save(build.build(name, 1, 1, image_size=SIZE, width=0.25), plain)
    quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(ready), str(path), Pictures(), quant_format=quantization.QuantFormat.QDQ, per_channel=per_channel,
        weight_type=quantization.QuantType.QInt8,
        activation_type=getattr(quantization.QuantType, activations),
    )  # fmt: skip
    return path


def run_onnxruntime(path: Path, x: np.ndarray, *, optimised: bool) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


@on_every_device
@pytest.mark.parametrize(
    "name, per_channel, activations",
    [
        ("mobilenet_v2", True, "QUInt8"),
        ("resnet18", False, "QUInt8"),
        ("resnet18", True, "QInt8"),
        ("squeezenet", True, "QUInt8"),
    ],
)
def test_a_quantised_network_is_as_near_as_onnxruntime_is_to_itself(
    name: str, per_channel: bool, activations: str, device: str, tmp_path: Path
) -> None:
    path = quantised(name, tmp_path, per_channel=per_channel, activations=activations)
    x = np.random.default_rng(9).uniform(-1, 1, (1, 3, SIZE, SIZE)).astype(np.float32)
    optimised, plain = (run_onnxruntime(path, x, optimised=flag) for flag in (True, False))
    with minicnn.load(path).plan(device=harness.open_device(device)) as engine:
        (y,) = engine.run(x).values()
        layers = Counter((layer.op, layer.variant) for layer in engine.plan.layers)
        assert not any(layer.is_fallback for layer in engine.plan.layers)
    assert not layers["Conv", "tiled"] and sum(n for (op, _), n in layers.items() if op == "QLinearConv") > 20
    assert not layers["QLinearConv", "direct"]
    # A rounding more or less in the middle moves the end by steps: joined layers round once, pieces do twice.
    step = output_step(path)
    nearest = min(np.abs(y - witness).max() for witness in (optimised, plain))
    assert nearest <= np.abs(optimised - plain).max() + step


def output_step(path: Path) -> float:
    """Of the last tensor that the network quantises."""
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    last = [
        node
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.output[0] == graph.output[0].name
    ]
    return float(constants[last[0].input[1]].max())


def layer_model(
    op: str, *, activation: list[onnx.NodeProto] | None = None, y_zero: int = 0, y_scale: float = 0.05,
    bias_step: float = 1.0, w_axis: int | None = 0, bias: bool = True, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """DequantizeLinear -> layer -> activation -> QuantizeLinear."""
    rng = np.random.default_rng(0)
    shapes = {
        "Conv": ([2, 5, 6, 7], (9, 5, 3, 3)),
        "Gemm": ([4, 12], (9, 12)),
        "MatMul": ([2, 3, 12], (12, 9)),
    }
    shape, of_w = shapes[op]
    filters = 9
    w_scale = rng.uniform(0.002, 0.01, filters if w_axis is not None else 1).astype(np.float32)
    constants: dict[str, np.ndarray] = {
        "xs": np.float32(0.02), "xz": np.uint8(117), "w": rng.integers(-127, 128, of_w).astype(np.int8),
        "ws": w_scale if w_axis is not None else w_scale.reshape(()),
        "wz": np.zeros(filters if w_axis is not None else (), np.int8),
        "b": rng.integers(-3000, 3000, filters).astype(np.int32),
        "bs": (np.float32(0.02) * bias_step * np.broadcast_to(w_scale, filters)).astype(np.float32),
        "bz": np.zeros(filters, np.int32), "ys": np.float32(y_scale), "yz": np.uint8(y_zero),
        "six": np.float32(6.0), "none": np.float32(0.0), "one": np.float32(1.0),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["w_real"], axis=w_axis or 0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["b_real"], axis=0),
        helper.make_node(op, ["x_real", "w_real", *(["b_real"] if bias else [])], ["t0"], **attributes),
        *(activation or []),
    ]
    last = f"t{len(activation or [])}"
    nodes.append(helper.make_node("QuantizeLinear", [last, "ys", "yz"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RELU = [helper.make_node("Relu", ["t0"], ["t1"])]
CLIP = [helper.make_node("Clip", ["t0", "none", "six"], ["t1"])]
JOINED = {
    "convolution": layer_model("Conv", pads=[1, 0, 2, 1], strides=[2, 1], y_zero=128),
    "one scale for all filters": layer_model("Conv", w_axis=None, y_zero=100),
    "Relu at the end of the range": layer_model("Conv", activation=RELU),
    "Clip at both ends": layer_model("Conv", activation=CLIP, y_scale=6 / 255),
    "no bias": layer_model("Conv", bias=False, y_zero=128),
    "fully connected": layer_model("Gemm", transB=1, y_zero=90),
    "rows of a larger tensor": layer_model("MatMul", bias=False, w_axis=1, y_zero=128),
}
APART = {
    "Relu within the range": layer_model("Conv", activation=RELU, y_zero=10),
    "Clip within the range": layer_model(
        "Conv", activation=[helper.make_node("Clip", ["t0", "none", "one"], ["t1"])], y_scale=6 / 255
    ),
    "a bias of another step": layer_model("Conv", bias_step=2.0, y_zero=128),
    "alpha": layer_model("Gemm", transB=1, alpha=0.5, y_zero=90),
    "an activation of another form": layer_model(
        "Conv", activation=[helper.make_node("Sigmoid", ["t0"], ["t1"])], y_scale=1 / 255
    ),
}


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


@on_every_device
@named("model", JOINED)
def test_a_joined_layer_is_within_a_step(model: onnx.ModelProto, device: str, tmp_path: Path) -> None:
    path = saved(model, tmp_path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    witness = run_onnxruntime(path, x, optimised=False).astype(int)
    with minicnn.load(path).plan(device=harness.open_device(device)) as engine:
        found = engine.run(x)["y"].astype(int)
        ops = [layer.op for layer in engine.plan.layers if layer.op not in ("Convert", "Reshape")]
    assert ops == ["QLinearConv"]
    assert len(np.unique(found)) > 20  # not all at an end of the range
    assert np.abs(found - witness).max() <= 1 and (found != witness).mean() < 0.01


@named("model", APART)
def test_what_saturation_does_not_do_stays_apart(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = saved(model, tmp_path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    witness = run_onnxruntime(path, x, optimised=False).astype(int)
    with minicnn.load(path).plan(device="host", threads=1) as engine:
        found = engine.run(x)["y"].astype(int)
        ops = [layer.op for layer in engine.plan.layers]
    assert "QLinearConv" not in ops and ops[-1] in ("QuantizeLinear", "Convert")
    assert np.abs(found - witness).max() <= 1 and (found != witness).mean() < 0.01


def test_a_tensor_that_others_read_stays_real(tmp_path: Path) -> None:
    model = layer_model("Conv", y_zero=128)
    model.graph.output.append(helper.make_tensor_value_info("t0", TensorProto.FLOAT, None))
    graph = minicnn.load(saved(model, tmp_path)).resolve()
    assert "QLinearConv" not in {node.op for node in join(graph).nodes}


def test_weights_are_folded_where_they_stay_real(tmp_path: Path) -> None:
    graph = minicnn.load(saved(layer_model("Conv", y_zero=128), tmp_path)).resolve()
    real = fold(graph)
    assert [node.op for node in real.nodes] == ["DequantizeLinear", "Conv", "QuantizeLinear"]
    conv = real.nodes[1]
    w, scale = (graph.constants[name] for name in ("w", "ws"))
    np.testing.assert_array_equal(
        real.constants[conv.inputs[1]], w.astype(np.float32) * scale.reshape(-1, 1, 1, 1)
    )
    joined = fold(join(graph))
    assert [node.op for node in joined.nodes] == ["QLinearConv"] and joined.constants["w"].dtype == np.int8
