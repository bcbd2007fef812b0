"""Calibration on a device whose truth is known and on the real host; what a record makes of it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from minicnn import facts, machine
from minicnn.calibrate import (
    FMA_WIDTH,
    OTHER_ACCUMULATORS,
    cache_flush,
    calibrate,
)
from minicnn.device import open_device
from minicnn.record import LayerFacts, RunRecord
from minicnn.step import Copy, Launch, Step
from minicnn.store import Recorder
from synthetic import SyntheticDevice


@pytest.mark.parametrize("is_slow", [False, True])
def test_known_costs_are_found(is_slow: bool) -> None:
    """2 GB/s read and written, 3 GFLOP/s; or a thousandth: then a small part of the work has to do."""
    longer, done = 1000.0 if is_slow else 1.0, []

    def of_step(step: Step) -> float:
        if isinstance(step, Copy):
            done.append(step.nbytes)
            return longer * 2 * step.nbytes / 2e3
        assert isinstance(step, Launch)
        if step.kernel.entry == "null_kernel":
            return 5.0
        threads, steps = step.grid[0] * step.block[0], dict(step.arguments)["steps"]
        flops = 2 * threads * FMA_WIDTH * OTHER_ACCUMULATORS * steps
        return longer * flops / 3e3

    found = calibrate(SyntheticDevice(of_step=of_step, bracket_us=0.5))
    assert found.bracket_us == pytest.approx(0.5) and found.bracket_spread_us == pytest.approx(0, abs=1e-6)
    assert found.clock_step_us == pytest.approx(0.5, abs=1e-6)
    assert found.null_kernel_us == pytest.approx(5.5)
    assert found.copy_gb_per_s == pytest.approx(2.0 / longer, rel=0.01)
    assert found.fma_gflop_per_s == pytest.approx(3.0 / longer, rel=0.01)
    assert max(done) == (2**26 // 256 if is_slow else 2**26)


def test_a_device_without_a_clock_has_no_calibration() -> None:
    class Timeless(SyntheticDevice):
        def elapsed_us(self, first: object, second: object) -> float:
            return math.nan

    assert all(math.isnan(value) for value in dataclasses.astuple(calibrate(Timeless())))


def test_the_host_calibrates() -> None:
    device = open_device("host", threads=1)
    try:
        found = calibrate(device)
        with cache_flush(device) as flush:
            flush()
    finally:
        device.close()
    assert all(math.isfinite(value) and value >= 0 for value in dataclasses.astuple(found))
    assert found.copy_gb_per_s > 0 and found.fma_gflop_per_s > 0


def record_of(times_us: np.ndarray, **attributes: object) -> RunRecord:
    names = map(str, range(times_us.shape[1]))
    layers = [LayerFacts(name=name, op="Conv", flops=2 * 10**6, bytes_min=10**5) for name in names]
    with Recorder(None, layers, len(times_us), attributes) as recorder:
        for rep, row in enumerate(times_us):
            recorder.add(rep, time_us=row, is_warmup=False)
    return recorder.record


def test_a_layer_nearer_to_the_floor_than_its_spread_is_unresolved() -> None:
    spread = np.linspace(-1, 1, 51)[:, None]  # quartiles 1 apart
    times = np.hstack([10.0 + 0.1 * spread, 10.0 + 5 * spread, 10.0 + 12 * spread, 1.1 + 0.1 * spread])
    record = record_of(times, bracket_us=1.0, bracket_spread_us=0.1, clock_step_us=0.1)
    assert facts.is_unresolved(record).tolist() == [False, False, True, True]
    assert not facts.is_unresolved(record_of(times)).any(), "nothing is known of the floor"


def test_rates_and_the_nearer_roof() -> None:
    record = record_of(np.full((6, 1), 100.0), copy_gb_per_s=2.0, fma_gflop_per_s=100.0)
    rate = facts.rate(record.layers[0], 100.0, record)
    assert (rate.gflop_per_s, rate.gb_per_s) == (20.0, 1.0)
    assert (rate.share, rate.bound) == (0.5, "memory")
    slow_arithmetic = dataclasses.replace(record, fma_gflop_per_s=25.0)
    rate = facts.rate(record.layers[0], 100.0, slow_arithmetic)
    assert (rate.share, rate.bound) == (0.8, "arithmetic")
    assert facts.rate(record.layers[0], math.nan, record).bound == ""
    assert math.isnan(facts.rate(record.layers[0], 1.0, record_of(np.ones((1, 1)))).share)


def test_what_disturbed_the_run_is_said() -> None:
    quiet = record_of(np.ones((20, 1)))
    assert facts.warnings(quiet) == []
    loud = dataclasses.replace(
        quiet, drift=0.05, drift_low=0.02, drift_high=0.08, other_load=1.23, throttled_share=0.5,
        is_outlier=np.arange(20) == 3,
    )  # fmt: skip
    assert facts.warnings(loud) == [
        "no steady state: the last third ran 5.0% slower than the first",
        "1 of 20 repetitions far from the others (kept in the medians)",
        "other processes kept 1.2 processors busy meanwhile",
        "the device held itself back in 50% of the repetitions",
    ]


def test_the_load_of_others_is_all_less_our_own(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 5000 0 0 0 0 0 0\ncpu0 1 2 3\n")
    first = machine.busy(tmp_path)
    assert first is not None and first.all_s == 2.0
    later = dataclasses.replace(first, at_s=first.at_s + 10, all_s=first.all_s + 13, own_s=first.own_s + 3)
    assert later.others_since(first) == pytest.approx(1.0)
    assert first.others_since(first) == 0.0
    assert machine.busy(tmp_path / "nowhere") is None
