"""Where in one arena each buffer lies: a pure function from lifetimes to offsets.

Source    greedy by size over temporal conflicts: Pisarchyk and Lee, "Efficient Memory Management for Deep
          Neural Net Inference" (2020); several orders are tried and the smallest arena is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from minicnn.geometry import round_up

CLIMB_STEPS = 30  # ResNet-50, fused or not, took 10 to reach the live peak; the other light networks none
ALIGNMENT = 256  # bytes: what cudaMalloc gives, and four cache lines


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer is alive in every layer from `first` to `last`, both included."""

    name: str
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Offsets in bytes. No arena can be smaller than `live_peak`, the most that is alive at one time."""

    offsets: Mapping[str, int]
    peak: int
    live_peak: int


def live_bytes(lifetimes: Iterable[Lifetime], layers: int) -> list[int]:
    """Bytes alive in each layer, alignment included."""
    change = [0] * (layers + 1)
    for life in lifetimes:
        size = round_up(life.nbytes, ALIGNMENT)
        change[max(life.first, 0)] += size
        change[min(life.last, layers - 1) + 1] -= size
    alive, total = [], 0
    for delta in change[:layers]:
        total += delta
        alive.append(total)
    return alive


def arrange(lifetimes: Iterable[Lifetime]) -> Arrangement:
    """Gives every buffer a place so that no two that are alive together overlap."""
    lives = list(lifetimes)
    if not lives:
        return Arrangement(offsets={}, peak=0, live_peak=0)
    layers = max(life.last for life in lives) + 1
    live_peak = max(live_bytes(lives, layers), default=0)
    best: Arrangement | None = None
    for order in _ORDERS:
        offsets, peak = _place(sorted(lives, key=order))
        if best is None or peak < best.peak:
            best = Arrangement(offsets=offsets, peak=peak, live_peak=live_peak)
        if best.peak == live_peak:
            break
    assert best is not None
    return _climb(best, lives) if best.peak > best.live_peak else best


def _climb(best: Arrangement, lives: list[Lifetime]) -> Arrangement:
    """Moves the buffers that reach the peak to the front of the order; keeps what helps."""
    order = sorted(lives, key=lambda life: best.offsets[life.name])
    for _ in range(CLIMB_STEPS):
        offsets, peak = _place(order)
        if peak < best.peak:
            best = Arrangement(offsets=offsets, peak=peak, live_peak=best.live_peak)
        if best.peak == best.live_peak:
            break
        order.sort(key=lambda life: offsets[life.name] + round_up(life.nbytes, ALIGNMENT) != peak)
    return best


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (-life.nbytes, life.first),
    lambda life: (-(life.last - life.first), -life.nbytes),
    lambda life: (-life.nbytes * (life.last - life.first + 1), life.first),
    lambda life: (life.first, -life.nbytes),
    lambda life: (-life.last, -life.nbytes),
)


def _place(lives: list[Lifetime]) -> tuple[dict[str, int], int]:
    """Each buffer in turn at the lowest gap that fits among those alive at the same time."""
    offsets: dict[str, int] = {}
    alive: dict[int, list[tuple[int, int]]] = defaultdict(list)  # layer -> (start, end) of what is alive
    begun: dict[int, list[tuple[int, int]]] = defaultdict(list)  # layer -> of what is alive from it on
    peak = 0
    for life in lives:
        size = round_up(life.nbytes, ALIGNMENT)
        start = 0
        together = chain(alive[life.first], *(begun[i] for i in range(life.first + 1, life.last + 1)))
        for other_start, other_end in sorted(together):
            if start + size <= other_start:
                break
            start = max(start, other_end)
        offsets[life.name] = start
        peak = max(peak, start + size)
        begun[life.first].append((start, start + size))
        for layer in range(life.first, life.last + 1):
            alive[layer].append((start, start + size))
    return offsets, peak
