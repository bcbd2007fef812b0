"""Numbers out of samples, and how sure they are: medians, intervals, ratios of medians.

Repetitions of a run depend on each other: a neighbour's load lasts for many of them. `serial_interval` is for
them; `median_interval` is exact for samples that don't.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class Interval:
    """low <= the true value <= high, with at least probability `coverage`."""

    low: float
    high: float
    coverage: float

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


SHORTFALL = 16.0  # of the correlation time found in n samples: about this times itself over n
UNBOUNDED = Interval(low=-math.inf, high=math.inf, coverage=1.0)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One quantity's samples in a line. `count` says how many were measured; without any, all is NaN."""

    count: int
    median: float
    interval: Interval
    percentile_5: float
    percentile_95: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        if not self.count:
            return "not measured"
        sure = f", {self.interval.low:,.1f} to {self.interval.high:,.1f}" if self.interval.is_bounded else ""
        return f"{self.median:,.1f} (median of {self.count}{sure})"


def measured(samples: ArrayLike) -> np.ndarray:
    """The samples as one row of float64, without those that weren't measured (NaN)."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    return values[~np.isnan(values)]


def median(samples: ArrayLike) -> float:
    """The middle sample, or the mean of the two in the middle; NaN of nothing."""
    values = measured(samples)
    return float(np.median(values)) if values.size else math.nan


def percentile(samples: ArrayLike, percent: float) -> float:
    """The value below which `percent` of 100 samples lie, linear between neighbours; NaN of nothing."""
    values = measured(samples)
    return float(np.percentile(values, percent)) if values.size else math.nan


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """An interval of the true median out of order statistics; it holds for every distribution.

    Of n independent samples the number that fall below the true median is binomial (n, 1/2). The k-th
    smallest and the k-th largest therefore enclose it with probability 1 - 2 P(fewer than k below); k is the
    largest that keeps this at `confidence`. Ties can only make the coverage larger.

    Raises    ValueError: confidence outside 0 to 1
    Source    H. A. David, H. N. Nagaraja, Order Statistics, section 7.1
    Not here  samples that depend on each other: `serial_interval`. Fewer than six samples can't give 95 %:
              the interval is then all numbers, coverage 1.
    """
    values = np.sort(measured(samples))
    n = values.size
    k, coverage = _rank(n, confidence)
    if k == 0:
        return UNBOUNDED
    return Interval(low=float(values[k - 1]), high=float(values[n - k]), coverage=coverage)


def serial_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """An interval of the median of samples in the order of time, each of which may resemble those before.

    The ranks of `median_interval`, their distance from the middle stretched by the square root of the
    correlation time: so many samples are worth one that stands alone. Of few samples that time is found too
    short: a second factor makes up for it, found by simulation (tests/test_measure.py).

    Not here  levels that last for a tenth of the run or more: no interval out of that run knows the others.
              Of 50 repetitions that jump between two levels, the median in the hole between, 95 % are 93 %.
    """
    values = measured(samples)
    n = values.size
    k, coverage = _rank(n, confidence)
    time = correlation_time(values)
    time *= 1 + SHORTFALL * (time - 1) / max(n, 1)
    k = k if time == 1 else math.floor(n / 2 + 0.5 - (n / 2 + 0.5 - k) * math.sqrt(time))
    if k < 1:
        return UNBOUNDED
    ordered = np.sort(values)
    return Interval(low=float(ordered[k - 1]), high=float(ordered[n - k]), coverage=coverage)


def _rank(n: int, confidence: float) -> tuple[int, float]:
    """(k, coverage): the k-th smallest and k-th largest enclose the median at least so surely; 0: none do."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, expected between 0 and 1")
    outside = 2 * _binomial_tail(n)  # outside[k - 1]: the probability that the k-th pair misses the median
    k = int(np.searchsorted(outside, 1 - confidence, side="right"))
    return k, float(1 - outside[k - 1]) if k else 1.0


def correlation_time(samples: ArrayLike) -> float:
    """How many samples in the order of time are worth one that stands alone, for the median; at least 1.

    Of the series "above or below the median": the sum of its autocorrelations as long as neighbouring pairs
    stay positive and fall, and the variance of the means of batches of 2, 4, 8 ...: the larger of the two.

    Source    C. J. Geyer, Practical Markov Chain Monte Carlo, 1992 (initial monotone sequence)
    """
    values = measured(samples)
    n = values.size
    signs = np.sign(values - np.median(values)) if n else values
    signs = signs - signs.mean() if n else signs
    variance = float(signs @ signs) / max(n, 1)
    if n < 4 or not variance:
        return 1.0
    lags = min(n // 2, 512)
    spectrum = np.fft.rfft(signs, 2 * n)
    correlations = np.fft.irfft(spectrum * spectrum.conj())[:lags] / (n * variance)
    correlations += 1 / n  # the mean was taken off: that much is missing
    pairs = correlations[: lags // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    time = 2 * float(np.minimum.accumulate(pairs[:positive]).sum()) - 1
    batch = 2
    while n // batch >= 6:
        means = signs[: n // batch * batch].reshape(-1, batch).mean(axis=1)
        time = max(time, batch * float(means.var(ddof=1)) / float(signs.var(ddof=1)))
        batch *= 2
    return max(time, 1.0)


def ratio_interval(before: ArrayLike, after: ArrayLike, confidence: float = 0.95) -> tuple[float, Interval]:
    """(median of `after` over that of `before`, an interval of it), from two runs of positive samples.

    The distances of each median from its own interval's ends, on a logarithmic scale, add as squares do.

    Source    G. Y. Zou, A. Donner, Statistics in Medicine 27, 2008 (method of variance estimates recovery)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = np.log(measured(before)), np.log(measured(after))
    shift = median(b) - median(a)
    if not math.isfinite(shift):
        return math.nan, UNBOUNDED
    first, second = serial_interval(a, confidence), serial_interval(b, confidence)
    if not (first.is_bounded and second.is_bounded):
        return math.exp(shift), UNBOUNDED
    low = shift - math.hypot(median(b) - second.low, first.high - median(a))
    high = shift + math.hypot(second.high - median(b), median(a) - first.low)
    coverage = min(first.coverage, second.coverage)
    return math.exp(shift), Interval(low=math.exp(low), high=math.exp(high), coverage=coverage)


def _binomial_tail(n: int) -> np.ndarray:
    """P(X <= i) for i = 0 .. below n / 2, X binomial (n, 1/2). In logarithms, since 2**-n underflows."""
    i = np.arange(1, (n + 1) // 2)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log((n - i + 1) / i))))
    return np.cumsum(np.exp(log_choose - n * math.log(2)))


def summary(samples: ArrayLike, confidence: float = 0.95) -> Summary:
    """Everything above about one quantity, its samples in the order of time."""
    values = measured(samples)
    return Summary(
        count=values.size,
        median=median(values),
        interval=serial_interval(values, confidence),
        percentile_5=percentile(values, 5),
        percentile_95=percentile(values, 95),
        minimum=float(values.min()) if values.size else math.nan,
        maximum=float(values.max()) if values.size else math.nan,
    )
