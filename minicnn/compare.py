"""Two records, layer by layer: the same, faster, slower, or can't tell.

Layers are matched by the ONNX nodes they stand for, so a fused layer is held against the sum of those it
replaced. Every verdict follows from an interval of the ratio of medians; the intervals are so wide
(Bonferroni) that with probability 1 - LEVEL all of them hold at once: that is how often not one verdict is
wrong, as long as the machine was in the same state for both. What it does between two runs no record knows:
`infer --against` takes both in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minicnn import facts, stats
from minicnn.errors import InputError
from minicnn.record import LayerFacts, RunRecord

LEVEL = 0.05  # probability of one wrong verdict or more, over all of a comparison's
MARGIN = 0.01  # ratios nearer to 1 than this are "same"
SAME, FASTER, SLOWER, UNKNOWN = "same", "faster", "slower", "can't tell"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What stands for the same nodes in both records: b against a.

    ratio     of the medians, b over a; NaN where one has nothing
    verdict   SAME: the interval lies within MARGIN of 1; FASTER, SLOWER: it lies beside 1; else UNKNOWN
    reason    of UNKNOWN: few repetitions, noise, at the floor of measuring, in one record alone
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_us: float
    after_us: float
    ratio: float
    interval: stats.Interval
    verdict: str
    reason: str = ""
    is_identical: bool = False  # the same launches with the same arguments


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows in the order of a's layers; `whole`: the plain runs, first to last event."""

    rows: tuple[Row, ...]
    whole: Row
    notes: tuple[str, ...] = ()

    @property
    def is_slower(self) -> bool:
        return any(row.verdict == SLOWER for row in (*self.rows, self.whole))


def compare(before: RunRecord, after: RunRecord, *, paired: bool = False) -> Comparison:
    """paired: the repetitions of both were taken in turn, so that what disturbed one disturbed the other.

    Raises    InputError: the records have no node in common
    """
    groups = _match(before.layers, after.layers)
    if before.layers and after.layers and not any(a and b for a, b in groups):
        raise InputError(
            "the records have no layer in common", found=after.model_file, expected=before.model_file
        )
    confidence = 1 - LEVEL / (len(groups) + 1)
    rows = [_row(before, after, a, b, confidence, paired) for a, b in groups]
    whole = _judged(
        before.plain_us, after.plain_us, before, after, confidence, paired, name="run", before_names=(),
        after_names=(), is_identical=False, reason="",
    )  # fmt: skip
    return Comparison(rows=tuple(rows), whole=whole, notes=tuple(_differences(before, after)))


def _row(
    before: RunRecord,
    after: RunRecord,
    a: Sequence[int],
    b: Sequence[int],
    confidence: float,
    paired: bool,
) -> Row:
    first, second = [before.layers[i] for i in a], [after.layers[i] for i in b]
    reason = ""
    if not a or not b:
        reason = "in one alone"
    elif facts.is_at_floor(before)[list(a)].all() and facts.is_at_floor(after)[list(b)].all():
        reason = "at the floor"
    named = next(layer.name for layer in (*first, *second) if layer.nodes or len(first) + len(second) == 1)
    return _judged(
        before.time_us[:, list(a)].sum(axis=1) if a else np.full(before.repetitions, np.nan),
        after.time_us[:, list(b)].sum(axis=1) if b else np.full(after.repetitions, np.nan),
        before,
        after,
        confidence,
        paired,
        name=named,
        before_names=tuple(layer.name for layer in first),
        after_names=tuple(layer.name for layer in second),
        is_identical=bool(a and b) and [f.fingerprint for f in first] == [f.fingerprint for f in second],
        reason=reason,
    )


def _judged(
    before_us: np.ndarray,
    after_us: np.ndarray,
    before: RunRecord,
    after: RunRecord,
    confidence: float,
    paired: bool,
    *,
    name: str,
    before_names: tuple[str, ...],
    after_names: tuple[str, ...],
    is_identical: bool,
    reason: str,
) -> Row:
    if paired:
        ratio, interval = _paired(before_us, after_us, before.is_steady & after.is_steady, confidence)
    else:
        samples = before_us[before.is_steady], after_us[after.is_steady]
        ratio, interval = stats.ratio_interval(*samples, confidence)
    verdict = UNKNOWN if reason else _verdict(interval)
    if verdict == UNKNOWN and not reason:
        reason = "few" if not interval.is_bounded else "noise"
    return Row(
        name=name,
        before=before_names,
        after=after_names,
        before_us=stats.median(before_us[before.is_steady]),
        after_us=stats.median(after_us[after.is_steady]),
        ratio=ratio,
        interval=interval,
        verdict=verdict,
        reason=reason,
        is_identical=is_identical,
    )


def _paired(
    before_us: np.ndarray, after_us: np.ndarray, steady: np.ndarray, confidence: float
) -> tuple[float, stats.Interval]:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(after_us[steady] / before_us[steady])
    logs = logs[np.isfinite(logs)]
    interval = stats.serial_interval(logs, confidence)
    if not interval.is_bounded:
        return math.exp(stats.median(logs)) if logs.size else math.nan, stats.UNBOUNDED
    ends = stats.Interval(
        low=math.exp(interval.low), high=math.exp(interval.high), coverage=interval.coverage
    )
    return math.exp(stats.median(logs)), ends


def _verdict(interval: stats.Interval) -> str:
    if not interval.is_bounded:
        return UNKNOWN
    if interval.low >= 1 / (1 + MARGIN) and interval.high <= 1 + MARGIN:
        return SAME
    if interval.high < 1:
        return FASTER
    return SLOWER if interval.low > 1 else UNKNOWN


def _match(
    before: Sequence[LayerFacts], after: Sequence[LayerFacts]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Groups of layer numbers of both that share nodes, directly or by way of others, in order."""
    nodes = [_nodes(before), _nodes(after)]
    group: dict[str, int] = {}  # node -> its group
    members: dict[int, set[str]] = {}
    for names in (*nodes[0], *nodes[1]):
        joined = {group[name] for name in names if name in group}
        target = min(joined, default=len(members))
        while target in members and target not in joined:
            target += 1
        merged = set(names).union(*(members.pop(g) for g in joined))
        members[target] = merged
        group |= dict.fromkeys(merged, target)
    sides = []
    for names_of in nodes:
        found: dict[int, list[int]] = {}
        for index, names in enumerate(names_of):
            found.setdefault(group[names[0]], []).append(index)
        sides.append(found)
    order = dict.fromkeys(group[names[0]] for names in (*nodes[0], *nodes[1]))
    return [(tuple(sides[0].get(g, ())), tuple(sides[1].get(g, ()))) for g in order]


def _nodes(layers: Sequence[LayerFacts]) -> list[tuple[str, ...]]:
    """Each layer's nodes. A conversion that the plan put in goes with the layer it is for, the next one.

    Layers behind the last one that has some go with that.
    """
    result: list[tuple[str, ...]] = [()] * len(layers)
    following: tuple[str, ...] = ()
    for index in range(len(layers) - 1, -1, -1):
        following = layers[index].nodes or following
        result[index] = following
    for index, names in enumerate(result):
        result[index] = names or (result[index - 1] if index else (layers[index].name,))
    return result


def _differences(before: RunRecord, after: RunRecord) -> list[str]:
    """What else differs between the two, and what disturbed either."""
    said = []
    for name, word in (
        ("model_sha256", "models"), ("device", "devices"), ("threads", "numbers of threads"),
        ("precision", "precisions"), ("input_types", "input shapes"), ("versions", "versions"),
    ):  # fmt: skip
        first, second = getattr(before, name), getattr(after, name)
        if first != second:
            shown = "" if name in ("model_sha256", "versions") else f": {first} and {second}"
            said.append(f"different {word}{shown}")
    for label, record in (("a", before), ("b", after)):
        said += [f"{label}: {sentence}" for sentence in facts.warnings(record)]
    return said
