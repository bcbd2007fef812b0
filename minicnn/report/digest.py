"""A record reduced to what every report says of it: layers' times, shares, rates, and who is alive when."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import facts, stats
from minicnn.facts import Rate
from minicnn.record import BufferFacts, LayerFacts, RunRecord


@dataclass(frozen=True, kw_only=True)
class LayerDigest:
    """One layer with what its samples say.

    share   of the sum of all layers' medians; NaN where nothing was measured
    Units   us
    """

    index: int
    facts: LayerFacts
    time: stats.Summary
    share: float
    rate: Rate
    is_unresolved: bool
    is_at_floor: bool
    gap_us: float  # medians over the repetitions that count
    enqueue_us: float
    alone_warm_us: float
    alone_cold_us: float


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A whole run. `layers` in the order of execution.

    sum_us   sum of the layers' medians: what shares are of
    total    first to last event, plain runs; where there are none, the sum of each repetition's layers
    """

    layers: tuple[LayerDigest, ...]
    sum_us: float
    total: stats.Summary
    wall: stats.Summary

    @property
    def slowest(self) -> list[LayerDigest]:
        """The measured layers, slowest first."""
        measured = [layer for layer in self.layers if layer.time.count]
        return sorted(measured, key=lambda layer: -layer.time.median)


def digest(record: RunRecord) -> Digest:
    steady = record.is_steady
    medians = facts.median_us(record)
    unresolved, at_floor = facts.is_unresolved(record), facts.is_at_floor(record)
    sum_us = float(np.nansum(medians)) if len(medians) else math.nan
    others = {
        name: [stats.median(column) for column in getattr(record, name)[steady].T]
        for name in ("gap_us", "enqueue_us", "alone_warm_us", "alone_cold_us")
    }
    layers = tuple(
        LayerDigest(
            index=i,
            facts=layer,
            time=stats.summary(record.time_us[steady, i]),
            share=float(medians[i]) / sum_us if sum_us > 0 else math.nan,
            rate=facts.rate(layer, float(medians[i]), record),
            is_unresolved=bool(unresolved[i]),
            is_at_floor=bool(at_floor[i]),
            **{name: column[i] for name, column in others.items()},
        )
        for i, layer in enumerate(record.layers)
    )
    plain = stats.summary(record.plain_us[steady])
    return Digest(
        layers=layers,
        sum_us=sum_us,
        total=plain if plain.count else stats.summary(record.time_us[steady].sum(axis=1)),
        wall=stats.summary(record.wall_us[steady]),
    )


def median_repetition(record: RunRecord) -> int | None:
    """The repetition, of those that count, whose layers together are nearest the median; None: untimed."""
    totals = np.where(record.is_steady, record.time_us.sum(axis=1), math.nan)
    if not len(record.layers) or np.isnan(totals).all():
        return None
    return int(np.nanargmin(np.abs(totals - np.nanmedian(totals))))


def peak_layer(record: RunRecord) -> int | None:
    """Where the most bytes are alive: the first such layer; None where the record doesn't say."""
    live = [layer.live_bytes for layer in record.layers]
    return int(np.argmax(live)) if any(live) else None


def tensor_name(described: str) -> str:
    """The name in "name dtype shape order"; names may hold blanks, the three words after them don't."""
    return described.rsplit(" ", 3)[0]


def writers(record: RunRecord) -> list[list[int | None]]:
    """For each layer and each of its inputs the layer that wrote it; None: an input of the network."""
    written: dict[str, int] = {}
    found: list[list[int | None]] = []
    for index, layer in enumerate(record.layers):
        found.append([written.get(tensor_name(tensor)) for tensor in layer.inputs])
        written |= {tensor_name(tensor): index for tensor in layer.outputs}
    return found


def alive(record: RunRecord, index: int) -> list[BufferFacts]:
    """What is in the arena while a layer runs, largest first; weights have their own memory."""
    found = [b for b in record.buffers if b.kind != "weight" and b.first <= index <= b.last]
    return sorted(found, key=lambda b: -b.nbytes)
