"""What follows from a record: layers resolved or not, rates and roofs, what to beware of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import stats
from minicnn.record import LayerFacts, RunRecord

WORTH_SAYING = 0.01  # of the run: a drift below isn't mentioned
BUSY = 0.1  # processors


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How fast a layer ran.

    share    of the nearer roof: 1 is the roof itself; a layer that works in caches may pass that of memory
    bound    "arithmetic", "memory", or "" where a roof isn't known
    """

    gflop_per_s: float
    gb_per_s: float
    share: float
    bound: str


def median_us(record: RunRecord) -> np.ndarray:
    """Each layer's median over the repetitions that count; NaN where it wasn't measured."""
    steady = record.is_steady
    return np.array([stats.median(record.time_us[steady, i]) for i in range(len(record.layers))])


def is_unresolved(record: RunRecord) -> np.ndarray:
    """True for layers nearer to the floor (an empty bracket) than their spread, that is the distance of their
    quartiles and the bracket's own. Without calibration none is."""
    steady = record.is_steady
    floor = record.bracket_us
    own = np.nan_to_num(record.bracket_spread_us) + np.nan_to_num(record.clock_step_us)
    marks = np.zeros(len(record.layers), bool)
    for i in range(len(record.layers)):
        times = stats.measured(record.time_us[steady, i])
        if times.size and not math.isnan(floor):
            low, middle, high = np.percentile(times, (25, 50, 75))
            marks[i] = middle - floor < high - low + own
    return marks


def is_at_floor(record: RunRecord) -> np.ndarray:
    """True for layers that can't be told from an empty bracket, however often they are measured."""
    own = np.nan_to_num(record.bracket_spread_us) + np.nan_to_num(record.clock_step_us)
    with np.errstate(invalid="ignore"):
        return median_us(record) - record.bracket_us <= own


def rate(facts: LayerFacts, microseconds: float, record: RunRecord) -> Rate:
    """Rates by the definition's operations and the compulsory bytes."""
    if not microseconds > 0:
        return Rate(gflop_per_s=math.nan, gb_per_s=math.nan, share=math.nan, bound="")
    flop, byte = facts.flops / microseconds / 1e3, facts.bytes_min / microseconds / 1e3
    arithmetic, memory = flop / record.fma_gflop_per_s, byte / record.copy_gb_per_s
    if math.isnan(arithmetic) or math.isnan(memory):
        return Rate(gflop_per_s=flop, gb_per_s=byte, share=math.nan, bound="")
    bound = "arithmetic" if arithmetic >= memory else "memory"
    return Rate(gflop_per_s=flop, gb_per_s=byte, share=max(arithmetic, memory), bound=bound)


def warnings(record: RunRecord) -> list[str]:
    """Sentences on what disturbed the run: drift, outliers, other processes, throttling, preemptions."""
    said = []
    steady = record.is_steady
    clear = record.drift_low > 0 or record.drift_high < 0
    if clear and abs(record.drift) >= WORTH_SAYING:
        slower = "slower" if record.drift > 0 else "faster"
        said.append(f"no steady state: the last third ran {abs(record.drift):.1%} {slower} than the first")
    outliers = int((record.is_outlier & steady).sum())
    if outliers:
        share = f"{outliers} of {int(steady.sum())} repetitions"
        said.append(f"{share} far from the others (kept in the medians)")
    if record.other_load >= BUSY:
        said.append(f"other processes kept {record.other_load:.1f} processors busy meanwhile")
    if record.throttled_share > 0:
        said.append(f"the device held itself back in {record.throttled_share:.0%} of the repetitions")
    return said
