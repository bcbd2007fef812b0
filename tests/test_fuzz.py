"""Mutated models end in right answers or typed errors; what fuzzing found once stays mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn
from minicnn import check
from minicnn.device import open_device
from minicnn.errors import MemoryLimitError, ModelError
from minicnn.onnx_file import load
from onnx_models import branch, named, saved, small, tensor, value
from tools import fuzz, fuzz_corpus
from tools.fuzz_mutate import mutated

MODELS = Path(__file__).parent.parent / "models"
CORPUS = [file.read_bytes() for file in sorted(fuzz_corpus.FOLDER.glob("*.onnx"))]


def test_the_corpus_is_what_its_script_makes() -> None:
    for name, model in fuzz_corpus.models():
        kept = onnx.load(fuzz_corpus.FOLDER / f"{name}.onnx")
        assert kept == model, f"python -m tools.fuzz_corpus makes another {name}"


def test_the_corpus_runs(tmp_path: Path) -> None:
    for data in CORPUS:
        graph = load(saved(data, tmp_path))
        x = np.full(graph.types["x"].extents, 0.5, np.float32)
        with minicnn.load(tmp_path / "model.onnx").plan(device="host", threads=1) as engine:
            assert engine.run(x)


def test_a_seed_is_one_model() -> None:
    assert [mutated(seed, CORPUS) for seed in range(20)] == [mutated(seed, CORPUS) for seed in range(20)]


@pytest.mark.slow
def test_mutated_models_hurt_nothing() -> None:
    tally, following = fuzz.fuzz(first=0, count=400, seconds=None, jobs=1)
    assert not tally.findings
    assert tally.counts["inputs"] == following == 400
    assert tally.counts["planned"] > 150 and tally.counts["ran"] > 100


def test_a_crash_and_a_hang_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall(seed: int, *_: object) -> fuzz.Tally:
        if seed == 2:
            fuzz.os.abort()
        while seed == 4:
            pass
        return fuzz.Tally(counts=fuzz.Counter(inputs=1))

    monkeypatch.setattr(fuzz, "try_one", fall)
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 1.0)
    tally, _ = fuzz.fuzz(first=0, count=6, seconds=None, jobs=1)
    assert tally.counts["inputs"] == 6
    ends = [(found["seed"], found["what"].split()[0]) for found in tally.findings]
    assert ends == [(2, "the"), (4, "still")]


# --- what it found


@named(
    "node",
    {
        "an operator without inputs": helper.make_node("Shape", [], ["y"]),
        "a needed input left out": helper.make_node("Relu", [""], ["y"]),
        "too many inputs": helper.make_node("Shape", ["x", "x"], ["y"]),
        "an attribute of another kind": helper.make_node("Softmax", ["x"], ["y"], axis=[1]),
        "an attribute of another opset": helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0]),
        "axes that aren't whole": helper.make_node("Unsqueeze", ["x", "half"], ["y"]),
        "a diagonal of two numbers": helper.make_node("Trilu", ["x", "two"], ["y"]),
        "numbers added to whole ones": helper.make_node("Max", ["x", "two"], ["y"]),
        "a limit of two numbers": helper.make_node("Clip", ["x", "pair"], ["y"]),
        "a shape of two axes": helper.make_node("Reshape", ["x", "table"], ["y"]),
        "a switch of three": helper.make_node("ReduceMean", ["x"], ["y"], keepdims=3),
    },
)
def test_nodes_that_no_schema_allows(tmp_path: Path, node: onnx.NodeProto) -> None:
    half = numpy_helper.from_array(np.float32([0.5]), "half")
    two = numpy_helper.from_array(np.int64([1, 2]), "two")
    pair = numpy_helper.from_array(np.float32([1, 2]), "pair")
    table = numpy_helper.from_array(np.int64([[6, 16]]), "table")
    constants = [half, two, pair, table]
    path = saved(small(nodes=[node], initializer=constants, inputs=[value("x", (2, 3, 4, 4))]), tmp_path)
    with pytest.raises(ModelError):
        minicnn.load(path).make_plan()


def test_size_of_something_with_branches(tmp_path: Path) -> None:
    inner = branch("b", [helper.make_node("Neg", ["x"], ["r"])], "r")
    node = helper.make_node("Size", ["x"], ["y"], then_branch=inner)
    with pytest.raises(ModelError):
        minicnn.load(saved(small(nodes=[node], inputs=[value("x", (2,))]), tmp_path)).make_plan()


def test_indices_into_an_axis_of_no_elements(tmp_path: Path) -> None:
    indices = numpy_helper.from_array(np.int64([0, 0]), "indices")
    node = helper.make_node("Gather", ["x", "indices"], ["y"], axis=1)
    path = saved(small(nodes=[node], initializer=[indices], inputs=[value("x", (2, 0))]), tmp_path)
    with pytest.raises(ModelError, match="no elements"):
        minicnn.load(path).make_plan()


@named(
    "shape",
    {"no pictures": (0, 3, 8, 8), "no pictures, one pixel": (0, 3, 1, 1)},
)
def test_empty_tensors_run(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with minicnn.load(saved(small(inputs=[value("x", shape)]), tmp_path)).plan(device="host") as engine:
        assert engine.run(np.zeros(shape, np.float32))["y"].shape == (0, 4, *shape[2:])


def test_a_constant_in_the_place_of_data(tmp_path: Path) -> None:
    """It lies as ONNX has it, and channels-last kernels read it so once."""
    node = helper.make_node("MaxPool", ["w"], ["y"], kernel_shape=[2, 2])
    image = tensor("w", 2, 3, 5, 5)
    path = saved(small(nodes=[node], initializer=[image], inputs=[value("x", (1,))]), tmp_path)
    w = numpy_helper.to_array(image)
    expected = np.maximum.reduce([w[:, :, i : i + 4, j : j + 4] for i in (0, 1) for j in (0, 1)])
    with minicnn.load(path).plan(device="host") as engine:
        np.testing.assert_array_equal(engine.run(np.zeros(1, np.float32))["y"], expected)


def test_checking_across_segments(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Cast", ["where"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["real"], ["y"]),
    ]
    path = saved(small(nodes=nodes, inputs=[value("x", (2, 3))]), tmp_path)
    with minicnn.load(path).plan(device="host") as engine:
        layers = check.check(engine, np.eye(2, 3, dtype=np.float32))
    assert any(layer.is_checked for layer in layers) and not any(layer.is_wrong for layer in layers)


def test_a_neighbourhood_wider_than_int32(tmp_path: Path) -> None:
    node = helper.make_node("LRN", ["x"], ["y"], size=2**31 + 1)
    path = saved(small(nodes=[node], inputs=[value("x", (1, 3, 2, 2))]), tmp_path)
    with minicnn.load(path).plan(device="host") as engine:
        assert np.isfinite(engine.run(np.ones((1, 3, 2, 2), np.float32))["y"]).all()


# --- memory


def test_a_device_that_runs_out_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("host", threads=1)
    alloc, held = device.alloc, len(device._blocks)
    monkeypatch.setattr(device, "alloc", lambda nbytes: alloc(nbytes if nbytes > 2_000_000 else 1 << 60))
    with pytest.raises(MemoryLimitError) as caught:
        minicnn.load(MODELS / "mtcnn_onet.onnx", batch=4).plan(device=device)
    for word in ("not enough memory", "node: ", "remedy: "):
        assert word in str(caught.value)
    assert len(device._blocks) == held
    device.close()


def test_a_plan_past_the_memory_limit_is_refused_before_it_allocates() -> None:
    model = minicnn.load(MODELS / "mtcnn_onet.onnx", batch=4)
    needed = model.make_plan()
    limit = needed.weight_bytes + needed.arena_bytes // 2
    with pytest.raises(MemoryLimitError) as caught:
        model.plan(device="host", memory_limit=limit)
    for word in ("node: ", f"at most {limit} B", "--batch", "--memory-limit"):
        assert word in str(caught.value)
    with model.plan(device="host", memory_limit=needed.weight_bytes + needed.arena_bytes) as engine:
        assert engine.plan.arena_bytes <= needed.arena_bytes
