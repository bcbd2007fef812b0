"""Tuning: what races, what is kept, and that the planner takes it."""

import json
from dataclasses import replace

import pytest
from onnx import helper

import minicnn
from minicnn import choose
from minicnn.device import open_device
from minicnn.engine import target_of
from minicnn.kernels import source_hash
from minicnn.registry import Target
from minicnn.tune import tune
from onnx_models import saved, small, tensor, value


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Two equal convolutions and another, in a cache folder of its own."""
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b"], ["a"], **same),
        helper.make_node("Conv", ["a", "w1", "b"], ["c"], **same),
        helper.make_node("Conv", ["c", "w2"], ["y"]),
    ]
    weights = [tensor("w0", 32, 32, 3, 3), tensor("w1", 32, 32, 3, 3), tensor("w2", 16, 32, 1, 1)]
    proto = small(
        nodes=nodes, inputs=[value("x", (1, 32, 9, 11))], initializer=[*weights, tensor("b", 32)]
    )
    return minicnn.load(saved(proto, tmp_path))


def test_one_race_for_each_distinct_problem(model):
    device = open_device("host", threads=1)
    try:
        plan = model.make_plan(target=target_of(device))
        races = list(tune(plan, device))
    finally:
        device.close()
    assert sorted(len(race.layers) for race in races) == [1, 2]
    for race in races:
        assert len(race.times_us) > 2
        assert "fft" not in race.times_us  # applies, but doesn't keep the bound: only on request
        assert race.winner.label in race.times_us
        assert all(time_us > 0 for time_us in race.times_us.values())


def test_the_planner_takes_what_was_measured_until_its_kernel_changes(model):
    target = Target(name="test", threads=1)
    problems = [layer.problem for layer in model.make_plan(target=target).layers if layer.problem is not None]
    key = choose.problem_key(problems[0])
    sources = {"im2col.cu": source_hash("im2col.cu")}
    winner = choose.Winner(label="im2col", time_us=1.0, sources=sources)
    path = choose.save_measured(target, {key: winner})
    layers = [la for la in model.make_plan(target=target).layers if la.variant == "im2col"]
    assert layers and all("measured" in layer.reason for layer in layers)
    elsewhere = model.make_plan(target=replace(target, threads=2)).layers
    assert not any(layer.variant == "im2col" for layer in elsewhere)
    stale = {"label": "im2col", "time_us": 1.0, "sources": {"im2col.cu": "other"}}
    path.write_text(json.dumps({key: stale}))
    assert not any(layer.variant == "im2col" for layer in model.make_plan(target=target).layers)
    path.write_text("not JSON")
    assert not any(layer.variant == "im2col" for layer in model.make_plan(target=target).layers)
