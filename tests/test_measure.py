"""Measuring held against the truth: a device with a made-up clock, known noise, delays put in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import minicnn
import synthetic
from minicnn import cli, stats
from minicnn.calibrate import BRACKETS, PARTS, ROOF_TRIES
from minicnn.compare import FASTER, SAME, SLOWER, compare
from minicnn.engine import Engine
from minicnn.measure import MOST, NARROW
from synthetic import SyntheticDevice

LAYERS = 5
TIMES_US = (40.0, 150.0, 90.0, 300.0, 70.0)
X = np.zeros((1, 4), np.float32)
RUNS_BEFORE = 2 * BRACKETS + 2 * len(PARTS) * ROOF_TRIES + 2  # calibration, planning, memory
TRACES = synthetic.recorded()
BUSY = [name for name in TRACES if name.startswith("2_threads")]
NOISES: dict[str, synthetic.Noise] = {
    "gaussian": synthetic.gaussian(0.02),
    "neighbours alike": synthetic.autoregressive(0.02, 0.6),
    "neighbours much alike": synthetic.autoregressive(0.02, 0.8),
} | {f"replayed {name}": synthetic.replayed(TRACES[name], block=5) for name in BUSY}


def tail_of(successes: int, n: int, p: float) -> float:
    """P(X <= successes), X binomial (n, p)."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(successes + 1))


@pytest.fixture
def engine_on(tmp_path: Path) -> Callable[[SyntheticDevice], Engine]:
    path = synthetic.chain(tmp_path / "chain.onnx", LAYERS)

    def open_engine(device: SyntheticDevice) -> Engine:
        steps: dict[object, float] = {}

        def of_step(step: object) -> float:
            if "relu" not in str(step):
                return 0.1  # calibration's
            if step not in steps:
                steps[step] = TIMES_US[len(steps)]
            return steps[step]

        device.of_step = of_step
        return minicnn.load(path).plan(device=device, fuse=False)

    return open_engine


def step_of(engine: Engine, layer: int) -> object:
    return engine.plan.layers[layer].steps[0]


# ---- the intervals


@pytest.mark.parametrize("repetitions", [50, 100])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
def test_intervals_cover_the_truth_as_often_as_they_say(noise: synthetic.Noise, repetitions: int) -> None:
    rng = np.random.default_rng(1)
    intervals = [stats.serial_interval(noise(rng, repetitions)) for _ in range(1000)]
    covered = sum(i.low <= 1 <= i.high for i in intervals)
    print(f"{covered} of 1000 intervals hold the truth")
    assert tail_of(covered, 1000, 0.95) > 0.001


@pytest.mark.parametrize("name", [name for name in TRACES if name not in BUSY])
def test_a_hole_at_the_median_takes_more_repetitions(name: str) -> None:
    """These traces jump by a third for many repetitions at a time, their median between the levels."""
    noise, rng = synthetic.replayed(TRACES[name], block=5), np.random.default_rng(1)
    intervals = [stats.serial_interval(noise(rng, 100)) for _ in range(1000)]
    covered = sum(i.low <= 1 <= i.high for i in intervals)
    print(f"{covered} of 1000 intervals hold the truth")
    assert tail_of(covered, 1000, 0.95) > 0.001


def test_independent_intervals_would_not_do() -> None:
    """Why `serial_interval` is there: the textbook's interval misses the truth far too often."""
    rng = np.random.default_rng(1)
    noise = NOISES["neighbours alike"]
    intervals = [stats.median_interval(noise(rng, 50)) for _ in range(400)]
    assert sum(i.low <= 1 <= i.high for i in intervals) < 0.85 * 400


def test_measured_layers_cover_their_true_times(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    """1,000 layer intervals out of whole measured runs: executor, boundaries, warm-up and all."""
    held = 0
    noise = NOISES[f"replayed {BUSY[0]}"]
    with engine_on(SyntheticDevice(noise=noise, seed=3)) as engine:
        for _ in range(1000 // LAYERS):
            record = engine.profile(X, repeat=50)
            for layer, truth in enumerate(TIMES_US):
                interval = stats.serial_interval(record.time_us[record.is_steady, layer])
                held += interval.low <= truth <= interval.high
    print(f"{held} of 1000 intervals hold the truth")
    assert tail_of(held, 1000, 0.95) > 0.001


def test_a_ratio_of_two_runs_is_covered() -> None:
    rng, noise = np.random.default_rng(2), NOISES["neighbours alike"]
    held = 0
    for _ in range(1000):
        _, interval = stats.ratio_interval(100 * noise(rng, 50), 103 * noise(rng, 40))
        held += interval.low <= 1.03 <= interval.high
    assert tail_of(held, 1000, 0.95) > 0.001


# ---- closure and overhead


def test_what_nobody_claims_is_unattributed(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    device = SyntheticDevice(unclaimed_us=13.0, transfer_us=20.0)
    with engine_on(device) as engine:
        record = engine.profile(X, repeat=20)
    total = sum(TIMES_US)
    np.testing.assert_allclose(record.time_us[0], TIMES_US, atol=1e-3)
    np.testing.assert_allclose(record.wall_us, total + 53, atol=1e-2)
    np.testing.assert_allclose(record.upload_us, 20, atol=1e-2)
    np.testing.assert_allclose(record.download_us, 20, atol=1e-2)
    np.testing.assert_allclose(record.unattributed_us, 13, atol=1e-2)
    assert record.closure_residual == pytest.approx(13 / (total + 53), abs=1e-5)
    assert record.closure_residual_low <= record.closure_residual <= record.closure_residual_high
    assert record.profiling_overhead == pytest.approx(0, abs=1e-6)


def test_the_cost_of_boundaries_shows_as_overhead(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    with engine_on(SyntheticDevice(bracket_us=8.0)) as engine:
        record = engine.profile(X, repeat=20)
    plain = sum(TIMES_US) + 2 * 8 + 20
    assert record.bracket_us == pytest.approx(8)
    assert record.profiling_overhead == pytest.approx((LAYERS - 1) * 8 / plain, rel=1e-3)
    np.testing.assert_allclose(record.time_us[0], np.array(TIMES_US) + 8, atol=1e-3)


def test_gaps_take_a_bracket_of_their_own(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    with engine_on(SyntheticDevice(bracket_us=2.0)) as engine:
        record = engine.profile(X, repeat=3, gaps=True)
        assert np.isnan(record.gap_us[:, 0]).all()
        np.testing.assert_allclose(record.gap_us[:, 1:], 2.0, atol=1e-3)
        assert np.isnan(engine.profile(X, repeat=3).gap_us).all()


def test_alone_a_layer_takes_what_it_takes(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    with engine_on(SyntheticDevice()) as engine:
        record = engine.profile(X, repeat=2, contexts=True)
    for alone in (record.alone_warm_us, record.alone_cold_us):
        np.testing.assert_allclose(alone, np.tile(TIMES_US, (record.repetitions, 1)), atol=1e-3)


def test_sampling_profiles_so_rarely_that_it_costs_less_than_a_percent(
    engine_on: Callable[[SyntheticDevice], Engine],
) -> None:
    device = SyntheticDevice(bracket_us=8.0)
    with engine_on(device) as engine:
        record = engine.profile(X, repeat=60, sampling=True)
    every = record.profiled_every
    steady = record.is_steady
    profiled = ~np.isnan(record.profiled_us[steady])
    assert every == math.ceil(record.profiling_overhead / 0.01) > 1
    assert abs(profiled.sum() - steady.sum() / every) < 1
    assert (profiled ^ ~np.isnan(record.plain_us[steady])).all(), "a repetition is one run"
    spent = np.nansum(record.wall_us[steady]) + np.nansum(record.profiled_wall_us[steady])
    assert spent / steady.sum() <= 1.01 * np.nanmedian(record.wall_us)
    assert math.isfinite(record.closure_residual)


# ---- delays put in by hand


def test_a_delay_is_found_where_it_was_put(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    device = SyntheticDevice()
    with engine_on(device) as engine:
        before = engine.profile(X, repeat=12)
        device.delays_us[step_of(engine, 3)] = 25.0
        after = engine.profile(X, repeat=12)
    shift = np.median(after.time_us, axis=0) - np.median(before.time_us, axis=0)
    np.testing.assert_allclose(shift, [0, 0, 0, 25, 0], atol=1e-6)
    assert np.median(after.plain_us) - np.median(before.plain_us) == pytest.approx(25)


# ---- warm-up and stopping


@pytest.mark.parametrize("noise", ["gaussian", "neighbours alike"])
def test_the_warm_up_is_found_within_two_repetitions(
    noise: str, engine_on: Callable[[SyntheticDevice], Engine]
) -> None:
    hits = 0
    for trial in range(40):
        device = SyntheticDevice(noise=NOISES[noise], seed=trial)
        with engine_on(device) as engine:
            length = trial % 12
            first = device.runs + RUNS_BEFORE
            device.warmup = lambda run, end=first + 2 * length: 1.3 if run < end else 1.0
            record = engine.profile(X, repeat=60)
        hits += abs(int(record.is_warmup.sum()) - length) <= 2
    print(f"found within two repetitions in {hits} of 40")
    assert hits >= 38


@pytest.mark.parametrize("repeat, repetitions, warmup", [(1, 3, 2), (5, 7, 2), (9, 10, 0), (30, 30, 0)])
def test_as_many_repetitions_count_as_were_asked_for(
    repeat: int, repetitions: int, warmup: int, engine_on: Callable[[SyntheticDevice], Engine]
) -> None:
    with engine_on(SyntheticDevice()) as engine:
        record = engine.profile(X, repeat=repeat)
        first, second = engine.profile_against(engine, X, repeat=repeat)
    for found in (record, first, second):
        assert (found.repetitions, int(found.is_warmup.sum())) == (repetitions, warmup)


def test_it_stops_when_the_median_is_known(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    with engine_on(SyntheticDevice(noise=synthetic.gaussian(0.001))) as engine:
        quiet = engine.profile(X)
    with engine_on(SyntheticDevice(noise=synthetic.gaussian(0.05))) as engine:
        noisy = engine.profile(X, seconds=100)
    assert quiet.repetitions <= 24 and quiet.notes == ()
    assert 24 < noisy.repetitions < MOST
    interval = stats.serial_interval(noisy.plain_us[noisy.is_steady])
    assert (interval.high - interval.low) / 2 <= NARROW * stats.median(noisy.plain_us[noisy.is_steady])


def test_stopping_when_it_looks_good_does_not_fool_the_interval(
    engine_on: Callable[[SyntheticDevice], Engine],
) -> None:
    held, trials = 0, 100
    with engine_on(SyntheticDevice(noise=NOISES["neighbours alike"], seed=5)) as engine:
        for _ in range(trials):
            record = engine.profile(X)
            interval = stats.serial_interval(record.time_us[record.is_steady, 3])
            held += interval.low <= TIMES_US[3] <= interval.high
    print(f"{held} of {trials} intervals hold the truth")
    assert tail_of(held, trials, 0.95) > 0.001


# ---- comparing


@pytest.mark.parametrize("noise", ["gaussian", f"replayed {BUSY[1]}"])
def test_equal_runs_are_told_apart_no_more_often_than_stated(
    noise: str, engine_on: Callable[[SyntheticDevice], Engine]
) -> None:
    wrong = 0
    with engine_on(SyntheticDevice(noise=NOISES[noise], seed=7)) as engine:
        records = [engine.profile(X, repeat=50) for _ in range(201)]
        for before, after in itertools.pairwise(records):
            comparison = compare(before, after)
            wrong += any(row.verdict in (FASTER, SLOWER) for row in (*comparison.rows, comparison.whole))
    print(f"{wrong} of 200 comparisons of equal runs gave a verdict")
    assert 1 - tail_of(wrong - 1, 200, 0.05) > 0.001


@pytest.mark.parametrize("noise, repeat", [("gaussian", 100), ("neighbours alike", 300)])
def test_three_percent_in_one_layer_are_found(
    noise: str, repeat: int, engine_on: Callable[[SyntheticDevice], Engine]
) -> None:
    found, others = 0, 0
    for trial in range(20):
        device = SyntheticDevice(noise=NOISES[noise], seed=trial)
        with engine_on(device) as engine:
            slow = trial % LAYERS
            before = engine.profile(X, repeat=repeat)
            device.delays_us[step_of(engine, slow)] = 0.03 * TIMES_US[slow]
            comparison = compare(before, engine.profile(X, repeat=repeat))
        verdicts = [row.verdict for row in comparison.rows]
        found += verdicts[slow] == SLOWER
        others += sum(v in (SLOWER, FASTER) for i, v in enumerate(verdicts) if i != slow)
    print(f"found {found} of 20; {others} false verdicts on the other layers")
    assert found >= 19 and others <= 2


def test_equal_quiet_runs_are_the_same(engine_on: Callable[[SyntheticDevice], Engine]) -> None:
    with engine_on(SyntheticDevice(noise=synthetic.gaussian(0.002))) as engine:
        comparison = compare(engine.profile(X, repeat=50), engine.profile(X, repeat=50))
    assert [row.verdict for row in (*comparison.rows, comparison.whole)] == [SAME] * (LAYERS + 1)


# ---- at the command line


def test_closure_can_be_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minicnn import engine as engine_module

    path = synthetic.chain(tmp_path / "chain.onnx", LAYERS)
    device = SyntheticDevice(unclaimed_us=60.0)
    monkeypatch.setattr(engine_module, "open_device", lambda *_, **__: device)
    monkeypatch.chdir(tmp_path)
    arguments = ["infer", str(path), "--device", "host", "--repeat", "12", "--require-closure"]
    assert cli.main([*arguments, "2%"]) == 3
    printed = capsys.readouterr()
    assert "unattributed 10.3%" in printed.out and "found: 10.3%" in printed.err
    assert (tmp_path / "chain.h5").exists(), "the record is there for who wants to see why"
    assert cli.main([*arguments, "0.11"]) == 0
