"""models/: the builders' graphs have the reference table's MACs, and their seeded weights give sane outputs.

MACs are counted here from ONNX's own shape inference, by no code of models/ or minicnn/.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference

onnxruntime = pytest.importorskip("onnxruntime")

MODELS = Path(__file__).parent.parent / "models"


def load_build() -> ModuleType:
    """models/build.py as a module: the folder is no package."""
    spec = importlib.util.spec_from_file_location("models_build", MODELS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["models_build"] = module
    spec.loader.exec_module(module)
    return module


build = load_build()

# Whole networks from exact graphs, in millions, at 224 pixels: an oracle made apart from models/build.py
MACS = {"alexnet": 655, "vgg16": 15470, "vgg19": 19632, "googlenet": 1432, "resnet18": 1814, "resnet50": 4089,
        "squeezenet": 349, "mobilenet_v2": 301, "densenet121": 2834, "efficientnet_lite0": 385}

# The smallest pictures that leave something for the last layers to do, at a quarter of the channels
REDUCED = {"alexnet": 99, "vgg16": 64, "vgg19": 64, "googlenet": 96, "densenet121": 64}


def macs(model: onnx.ModelProto) -> int:
    """Multiply-accumulates of Conv and Gemm, from shapes onnx infers; weights are declared, not carried."""
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    bare.graph.name = model.graph.name
    bare.graph.node.extend(model.graph.node)
    bare.graph.output.extend(model.graph.output)
    weights = {w.name for w in model.graph.initializer}
    bare.graph.input.extend(i for i in model.graph.input if i.name not in weights)
    for w in model.graph.initializer:
        if w.data_type == onnx.TensorProto.FLOAT:
            bare.graph.input.append(helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)))
        else:
            bare.graph.initializer.append(w)
    graph = shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True).graph
    shape = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
             for v in [*graph.value_info, *graph.input, *graph.output]}
    total = 0
    for node in graph.node:
        if node.op_type == "Conv":  # one filter tap for each output element and input channel of its group
            total += math.prod(shape[node.output[0]]) * math.prod(shape[node.input[1]][1:])
        elif node.op_type == "Gemm":
            total += math.prod(shape[node.output[0]]) * shape[node.input[1]][1]
    return total


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The model's first output from onnxruntime, unoptimised (which would cost more than it saves here)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    file = model.SerializeToString()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session.run(None, {data_input(model): x})[0]


def data_input(model: onnx.ModelProto) -> str:
    weights = {w.name for w in model.graph.initializer}
    (name,) = [i.name for i in model.graph.input if i.name not in weights]
    return name


def assert_sane(model: onnx.ModelProto, shape: tuple[int, ...]) -> np.ndarray:
    """Logits of ordinary size, spread over the classes, that follow the input. Returns those of one input."""
    random = np.random.default_rng(5)
    coarse = random.uniform(-1, 1, (2, *shape[:2], 4, 4))  # patches: fine noise averages out
    a, b = (coarse.repeat(-(-shape[2] // 4), 3).repeat(-(-shape[3] // 4), 4)[:, :, :, :shape[2], :shape[3]]
            + random.uniform(-0.2, 0.2, (2, *shape))).astype(np.float32)
    ya, yb = run(model, a).reshape(shape[0], -1), run(model, b).reshape(shape[0], -1)
    assert np.isfinite(ya).all() and np.isfinite(yb).all()
    centred = ya - ya.mean(axis=1, keepdims=True)
    spread = float(np.sqrt((centred**2).mean()))
    assert 0.1 < spread < 100 and np.abs(ya).max() < 1000
    assert np.linalg.norm(ya - yb) > 0.02 * np.linalg.norm(centred), "the input hardly shows in the output"
    assert len(np.unique(ya)) > ya.size / 4
    return ya


@pytest.mark.parametrize("name", MACS)
def test_macs_equal_the_reference_table(name, monkeypatch):
    def declare(net, weight, values):
        net.weights.append(onnx.TensorProto(name=weight, dims=values.shape, data_type=onnx.TensorProto.FLOAT))
        return weight

    monkeypatch.setattr(build, "seeded_weight", lambda random, shape, gain=2.0: np.broadcast_to(0, shape))
    monkeypatch.setattr(build.Net, "weight", declare)  # the graph alone: VGG's weights are half a gigabyte
    count = macs(build.build(name))
    assert round(count / 1e6) == MACS[name], f"{name}: {count:,} MACs"


@pytest.mark.parametrize("name", MACS)
def test_a_reduced_network_passes_the_checker_and_runs(name):
    size = REDUCED.get(name, 64)
    model = build.build(name, seed=3, batch=2, image_size=size, width=0.25)
    onnx.checker.check_model(model, full_check=True)
    y = assert_sane(model, (2, 3, size, size))
    assert y.shape == (2, 1000)
    assert not np.array_equal(y[0], y[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", MACS)
def test_a_full_network_runs(name):
    assert_sane(build.build(name), (1, 3, 224, 224))


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others():
    one, same, other = (build.build("squeezenet", seed=s, image_size=64, width=0.25).SerializeToString()
                        for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_batch_norm_statistics_are_not_trivial():
    model = build.build("resnet18", image_size=64, width=0.25)
    parts = {w.name.rsplit(".", 1)[1]: numpy_helper.to_array(w)
             for w in model.graph.initializer if "batchnorm" in w.name}
    for part, forgotten in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1)):
        assert (parts[part] != forgotten).all() and parts[part].std() > 0.01
    assert (parts["var"] > 0).all()


def test_node_names_are_unique():
    for name in MACS:
        if "vgg" not in name:
            model = build.build(name, image_size=REDUCED.get(name, 64), width=0.25)
            names = [n.name for n in model.graph.node]
            assert len(names) == len(set(names)) and all(names)


def test_unknown_names_and_small_images_are_refused():
    with pytest.raises(ValueError, match="there are alexnet"):
        build.build("resnet")
    with pytest.raises(ValueError, match="too small"):
        build.build("alexnet", image_size=32, width=0.25)


def test_the_command_writes_a_model(tmp_path, capsys):
    target = tmp_path / "net.onnx"
    assert build.main(["squeezenet", "--output", str(target), "--image-size", "64", "--width", "0.25"]) == 0
    onnx.checker.check_model(onnx.load(target))
    assert "squeezenet" in capsys.readouterr().out
    assert build.main(["squeezenet", "--output", str(tmp_path / "none" / "net.onnx"), "--width", "0.25"]) == 2


LIGHT = sorted(build.light_models())
HEAVY = {"bvlc_alexnet", "vgg19", "zfnet512"}


def test_the_nine_light_models_are_found():
    assert LIGHT == ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
                     "squeezenet", "vgg19", "zfnet512"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in HEAVY)) for n in LIGHT])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_refilled_light_model_gives_sane_logits(name, batch):
    model = build.logits_only(build.refill(onnx.load(build.light_models()[name]), seed=7, batch=batch))
    onnx.checker.check_model(model)
    assert not any(n.op_type in ("ConstantOfShape", "Softmax") for n in model.graph.node)
    for w in model.graph.initializer:
        if w.data_type == onnx.TensorProto.FLOAT and math.prod(w.dims) > 8:
            assert numpy_helper.to_array(w).std() > 0, f"{w.name} is still constant"
    y = assert_sane(model, (batch, 3, 224, 224))
    assert y.shape == (batch, 1000)
    if batch > 1:
        assert not np.array_equal(y[0], y[1])


def test_refill_leaves_its_argument_alone_and_keeps_the_graph():
    before = onnx.load(build.light_models()["squeezenet"])
    text = before.SerializeToString()
    after = build.refill(before, seed=7)
    assert before.SerializeToString() == text
    assert after.SerializeToString() == build.refill(before, seed=7).SerializeToString()
    ops = [n.op_type for n in before.graph.node if n.op_type != "ConstantOfShape"]
    assert [n.op_type for n in after.graph.node] == ops
    assert {o.name for o in after.graph.output} == {o.name for o in before.graph.output}
    assert round(macs(after) / 1e6) == MACS["squeezenet"]
