"""RunRecord: arrays that fit each other, what counts as steady, and its printed form."""

import dataclasses

import numpy as np
import pytest

from minicnn.record import LayerFacts, RunRecord
from minicnn.store import Recorder

LAYERS = [LayerFacts(name="conv", op="Conv"), LayerFacts(name="relu", op="Relu")]


def record_of(warmup: list[bool], **attributes) -> RunRecord:
    with Recorder(None, LAYERS, len(warmup), attributes) as recorder:
        for rep, is_warmup in enumerate(warmup):
            recorder.add(rep, time_us=[10.0, 20.0], plain_us=30.0 + rep, wall_us=40.0, is_warmup=is_warmup)
    return recorder.record


def test_arrays_that_do_not_fit_the_layers_are_refused():
    record = record_of([False, False])
    with pytest.raises(ValueError, match=r"time_us has shape \(2, 1\), expected \(2, 2\)"):
        dataclasses.replace(record, time_us=record.time_us[:, :1])
    with pytest.raises(ValueError, match="wall_us"):
        dataclasses.replace(record, wall_us=record.wall_us[:1])


def test_warm_up_does_not_count_unless_there_is_nothing_else():
    assert record_of([True, False, False]).is_steady.tolist() == [False, True, True]
    assert record_of([True, True]).is_steady.tolist() == [True, True]


def test_what_was_not_measured_is_nan():
    record = record_of([False])
    for name in ("gap_us", "enqueue_us", "upload_us", "host_us", "unattributed_us"):
        assert np.isnan(getattr(record, name)).all(), name
    assert np.isnan([record.closure_residual, record.profiling_overhead, record.touched_peak_bytes]).all()


def test_memory_beyond_the_plan():
    record = record_of([False], allocated_peak_bytes=1000.0, planned_peak_bytes=300, weights_bytes=200)
    assert record.beyond_plan_bytes == 500


def test_it_prints_itself():
    attributes = {"model_file": "net.onnx", "device": "a CPU", "live_peak_bytes": 12345}
    assert str(record_of([True, False, False, False], **attributes)).splitlines() == [
        "run of net.onnx on a CPU, fp32",
        "  2 layers, 3 repetitions and 1 of warm-up",
        "  plain 32.0 us (median of 3)",
        "  wall 40.0 us (median of 3)",
        "  live peak 12,345 B, planned 0 B, weights 0 B",
    ]
