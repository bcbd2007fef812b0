"""Numbers out of samples, and how sure they are: median, percentiles, an interval of the median."""

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
    Not here  samples that depend on each other (drift, throttling): the interval is then too narrow. Fewer
              than six samples can't give 95 %: the interval is then all numbers, coverage 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, expected between 0 and 1")
    values = np.sort(measured(samples))
    n = values.size
    outside = 2 * _binomial_tail(n)  # outside[k - 1]: the probability that the k-th pair misses the median
    k = int(np.searchsorted(outside, 1 - confidence, side="right"))
    if k == 0:
        return Interval(low=-math.inf, high=math.inf, coverage=1.0)
    return Interval(low=float(values[k - 1]), high=float(values[n - k]), coverage=float(1 - outside[k - 1]))


def _binomial_tail(n: int) -> np.ndarray:
    """P(X <= i) for i = 0 .. below n / 2, X binomial (n, 1/2). In logarithms, since 2**-n underflows."""
    i = np.arange(1, (n + 1) // 2)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log((n - i + 1) / i))))
    return np.cumsum(np.exp(log_choose - n * math.log(2)))


def summary(samples: ArrayLike, confidence: float = 0.95) -> Summary:
    """Everything above about one quantity."""
    values = measured(samples)
    return Summary(
        count=values.size,
        median=median(values),
        interval=median_interval(values, confidence),
        percentile_5=percentile(values, 5),
        percentile_95=percentile(values, 95),
        minimum=float(values.min()) if values.size else math.nan,
        maximum=float(values.max()) if values.size else math.nan,
    )
