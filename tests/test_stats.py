"""Statistics against what is known beforehand: exact binomial sums, intervals that cover as they say."""

import math
from fractions import Fraction

import numpy as np
import pytest

from minicnn import stats


def exact_outside(n: int, k: int) -> Fraction:
    """The probability that the true median lies below the k-th smallest or above the k-th largest of n."""
    return Fraction(2 * sum(math.comb(n, i) for i in range(k)), 2**n)


def test_median_and_percentiles_of_a_known_row():
    samples = [5.0, 1.0, math.nan, 4.0, 2.0, 3.0]
    assert stats.median(samples) == 3.0
    assert stats.percentile(samples, 25) == 2.0
    assert stats.percentile(samples, 90) == pytest.approx(4.6)
    assert stats.median([1.0, 2.0]) == 1.5


def test_one_slow_repetition_does_not_move_the_median():
    assert stats.median([10.0, 10.0, 11.0, 10.0, 1e9]) == 10.0


def test_nothing_measured_is_nan():
    for samples in ([], [math.nan, math.nan]):
        assert math.isnan(stats.median(samples))
        assert math.isnan(stats.percentile(samples, 50))
        assert stats.summary(samples).count == 0
        assert str(stats.summary(samples)) == "not measured"


@pytest.mark.parametrize(
    "n, k",
    # The classic table of order-statistics intervals at 95 %: n samples, k-th smallest to k-th largest.
    [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (30, 10), (50, 18), (100, 40)],
)
def test_interval_takes_the_tabled_order_statistics(n, k):
    samples = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    interval = stats.median_interval(samples)
    assert (interval.low, interval.high) == (k, n + 1 - k)
    assert interval.coverage == pytest.approx(float(1 - exact_outside(n, k)), abs=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_interval_is_the_narrowest_that_keeps_the_confidence(confidence):
    for n in [*range(1, 40), 99, 100, 257]:
        interval = stats.median_interval(np.arange(1.0, n + 1), confidence)
        allowed = 1 - Fraction(confidence)
        fitting = [k for k in range(1, (n + 1) // 2 + 1) if exact_outside(n, k) <= allowed]
        if fitting:
            assert interval.low == max(fitting), n
        else:
            assert not interval.is_bounded and interval.coverage == 1.0, n


def test_fewer_than_six_samples_bound_nothing_at_95_percent():
    assert not stats.median_interval([1.0] * 5).is_bounded
    assert stats.median_interval([1.0] * 6).is_bounded
    assert not stats.median_interval([]).is_bounded


def test_a_million_samples_neither_underflow_nor_take_long():
    interval = stats.median_interval(np.arange(1_000_000.0))
    half_width = 1.96 * math.sqrt(1_000_000) / 2  # the normal approximation, in samples
    assert interval.high - interval.low == pytest.approx(2 * half_width, rel=0.01)
    assert 0.95 <= interval.coverage < 0.9502


@pytest.mark.parametrize(
    "draw, truth",
    [
        (lambda rng, shape: rng.exponential(1.0, shape), math.log(2)),
        (lambda rng, shape: rng.lognormal(3.0, 2.0, shape), math.exp(3.0)),
        (lambda rng, shape: rng.standard_cauchy(shape), 0.0),
    ],
    ids=["exponential", "long tail", "no mean at all"],
)
def test_interval_covers_the_true_median_as_often_as_it_says(draw, truth):
    experiments, n = 4000, 25
    rows = draw(np.random.default_rng(1), (experiments, n))
    intervals = [stats.median_interval(row) for row in rows]
    covered = np.mean([i.low <= truth <= i.high for i in intervals])
    stated = intervals[0].coverage
    assert stated >= 0.95
    assert abs(covered - stated) < 4 * math.sqrt(stated * (1 - stated) / experiments)


def test_ties_do_not_lose_coverage():
    rows = np.random.default_rng(2).integers(0, 3, (2000, 15))  # the true median is 1
    intervals = [stats.median_interval(row) for row in rows]
    assert np.mean([i.low <= 1 <= i.high for i in intervals]) >= 0.95


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 95.0, math.nan])
def test_a_confidence_that_is_no_probability_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence"):
        stats.median_interval([1.0], confidence)


def test_summary_gathers_it_all():
    summary = stats.summary(np.arange(1.0, 101.0).reshape(2, 50).T)  # a low one, a high one, in turn
    assert (summary.count, summary.median, summary.minimum, summary.maximum) == (100, 50.5, 1.0, 100.0)
    assert summary.percentile_5 == pytest.approx(5.95)
    assert str(summary) == "50.5 (median of 100, 40.0 to 61.0)"
