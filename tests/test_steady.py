"""Warm-up, drift and outliers in series that are known, on noise from a recorded machine too."""

from __future__ import annotations

import numpy as np
import pytest

import synthetic
from minicnn import steady

NOISES = {"gaussian": synthetic.gaussian(0.02), "neighbours alike": synthetic.autoregressive(0.02, 0.6)}


def slowed(series: np.ndarray, length: int, factor: float) -> np.ndarray:
    return series * np.where(np.arange(series.size) < length, factor, 1.0)


@pytest.mark.parametrize("length", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("noise, share", [("gaussian", 0.98), ("neighbours alike", 0.92)])
def test_a_step_is_found_within_two_repetitions(noise: str, share: float, length: int) -> None:
    rng = np.random.default_rng(3)
    lengths = [steady.warmup_length(slowed(NOISES[noise](rng, 80), length, 1.2)) for _ in range(300)]
    hits = sum(abs(found - length) <= 2 for found in lengths)
    print(f"{hits} of 300")
    assert hits >= share * 300


@pytest.mark.parametrize("name", [name for name in synthetic.recorded() if name.startswith("2_threads")])
def test_a_step_beyond_the_machine_s_own_spells_is_found_on_recorded_noise(name: str) -> None:
    """Where slow spells of five repetitions are usual, a step is told from one by its size alone."""
    noise, rng = synthetic.replayed(synthetic.recorded()[name], block=5), np.random.default_rng(3)
    lengths = [steady.warmup_length(slowed(noise(rng, 80), 8, 4.0)) for _ in range(300)]
    hits = sum(abs(found - 8) <= 2 for found in lengths)
    print(f"{hits} of 300")
    assert hits >= 0.88 * 300


def test_a_slow_approach_is_cut_where_it_is_lost_in_the_noise() -> None:
    rng = np.random.default_rng(1)
    series = synthetic.gaussian(0.01)(rng, 100) * (1 + np.exp(-np.arange(100) / 5))
    assert 12 <= steady.warmup_length(series) <= 26  # e^(-12/5) = 9 %, e^(-26/5) = 0.6 %


def test_getting_slower_is_a_beginning_too() -> None:
    assert steady.warmup_length(slowed(np.ones(40), 6, 0.8)) == 6


@pytest.mark.parametrize("n, length", [(0, 0), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_of_few_repetitions_two_are_left_out(n: int, length: int) -> None:
    assert steady.warmup_length(np.ones(n)) == length


def test_no_more_than_half_is_warm_up() -> None:
    assert steady.warmup_length(np.linspace(2, 1, 40)) <= 20


def test_constant_and_unmeasured_series() -> None:
    assert steady.warmup_length(np.full(30, 5.0)) == 0
    assert steady.warmup_length(np.full(30, np.nan)) == 2


def test_drift_is_measured_with_its_interval() -> None:
    rng = np.random.default_rng(2)
    ramp = np.linspace(1.0, 1.15, 90)
    value, interval = steady.drift(ramp * synthetic.gaussian(0.01)(rng, 90))
    assert value == pytest.approx(0.1, abs=0.02)  # a third's middle lies two thirds of the way apart
    assert interval.low > 0.03
    _, interval = steady.drift(synthetic.gaussian(0.01)(rng, 90))
    assert interval.low < 0 < interval.high
    assert np.isnan(steady.drift([1.0, 2.0])[0])


def test_outliers_are_marked_and_nothing_else() -> None:
    series = synthetic.gaussian(0.02)(np.random.default_rng(4), 60)
    series[[7, 30]] *= (1.5, 0.5)
    assert np.flatnonzero(steady.outliers(series)).tolist() == [7, 30]
    assert not steady.outliers([1.0, 100.0]).any(), "of two nobody knows which is odd"
