"""Which repetitions count: where the steady state begins, whether it drifts, which ones stand apart."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from minicnn import stats

FEW = 10  # of fewer repetitions nothing can be found; the first two are then left out
WINDOW = 5  # of the running median
RARE = 2  # percent at either end
LEAST_CHANGE = 0.01  # of the level: what is less isn't worth a repetition
NORMAL_SPREAD = 1.4826  # standard deviations in a median absolute deviation
OUTLIER_SPREADS = 6.0


def warmup_length(times: ArrayLike) -> int:
    """How many repetitions at the start differ from what follows; at most half of them.

    The later half says what is usual: the range of its single times, and that of its running medians, but for
    the RARE ones at either end. The steady state begins with the first repetition within the one
    whose running median is within the other. Spells that the later half knows too are no warm-up.
    """
    values = np.asarray(times, dtype=np.float64)
    n = values.size
    if n < FEW or not np.isfinite(values).all():
        return min(2, n - 1) if n else 0
    running = np.median(sliding_window_view(values, WINDOW), axis=1)
    medians_fit = _is_usual(running, running[n // 2 :])
    single_fits = _is_usual(values, values[n // 2 :])
    fit = medians_fit & single_fits[: len(running)]
    return min(int(np.argmax(fit)), n // 2) if fit.any() else n // 2


def _is_usual(values: np.ndarray, late: np.ndarray) -> np.ndarray:
    rare = RARE if late.size >= 100 / RARE else 0
    low, high = np.percentile(late, [rare, 100 - rare])
    margin = LEAST_CHANGE * float(np.median(late))
    return (values >= low - margin) & (values <= high + margin)


def drift(times: ArrayLike) -> tuple[float, stats.Interval]:
    """(how much slower the last third is than the first, a fraction; its interval)"""
    values = stats.measured(times)
    third = values.size // 3
    if third < 2:
        return math.nan, stats.UNBOUNDED
    first, last = (_levelled(part) for part in (values[:third], values[-third:]))
    ratio, interval = stats.ratio_interval(first, last)
    if not interval.is_bounded:
        return ratio - 1, stats.UNBOUNDED
    return ratio - 1, stats.Interval(low=interval.low - 1, high=interval.high - 1, coverage=interval.coverage)


def _levelled(values: np.ndarray) -> np.ndarray:
    """The series without its own slope, which would pass for noise; the level of its middle stays."""
    half = values.size // 2
    slope = (np.median(values[-half:]) - np.median(values[:half])) / (values.size - half)
    level = values - slope * (np.arange(values.size) - (values.size - 1) / 2)
    return level if (level > 0).all() else values


def outliers(times: ArrayLike) -> np.ndarray:
    """True where a repetition lies far outside the others, in logarithms. It stays in the medians."""
    values = np.asarray(times, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        series = np.where(values > 0, np.log(values), np.nan)
    if np.isfinite(series).sum() < FEW:
        return np.zeros(values.shape, bool)
    distance = np.abs(series - np.nanmedian(series))
    spread = max(NORMAL_SPREAD * float(np.nanmedian(distance)), LEAST_CHANGE / 10)
    return np.nan_to_num(distance) > OUTLIER_SPREADS * spread
