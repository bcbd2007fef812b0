"""Energy of single layers: each run over and over while meters are watched, idle taken off.

Not here  what other processes burn meanwhile on a processor: its counter is the whole package's
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

POWERCAP = Path("/sys/class/powercap")
LOOP_S = 0.25  # a layer: many steps of the slowest counter
IDLE_S = 0.5
POWER_EVERY_S = 0.02


class Meter(Protocol):
    """What can be read. None: not readable; `name` says where it comes from."""

    name: str

    def energy_uj(self) -> float | None: ...

    def power_w(self) -> float | None: ...


class Rapl:
    """The packages' energy counters of Linux's powercap; they have no power reading."""

    def __init__(self, zones: Iterable[Path]):
        self._zones = tuple(zones)
        self.name = "RAPL " + ", ".join((zone / "name").read_text().strip() for zone in self._zones)
        self._last = {zone: self._read(zone) for zone in self._zones}
        self._wraps = {zone: int((zone / "max_energy_range_uj").read_text()) for zone in self._zones}
        self._total = 0.0

    def energy_uj(self) -> float | None:
        """Since this object was made; a counter that has begun again is carried on."""
        for zone in self._zones:
            now = self._read(zone)
            passed = now - self._last[zone]
            self._total += passed if passed >= 0 else passed + self._wraps[zone]
            self._last[zone] = now
        return self._total

    def power_w(self) -> float | None:
        return None

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())


def find_rapl(root: Path = POWERCAP) -> Rapl | str:
    """The host's meter, or why there is none."""
    zones = [path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1]
    if not zones:
        return f"no energy counter of this processor in {root}"
    try:
        return Rapl(zones)
    except PermissionError:
        return f"{root}/{zones[0].name}/energy_uj is for root alone"
    except (OSError, ValueError) as error:
        return f"{root} can't be read: {error}"


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Microjoules of one run of each layer beyond idle: by the counter, and by summing power readings;
    NaN where that isn't readable."""

    by_counter_uj: np.ndarray
    by_power_uj: np.ndarray
    idle_power_w: float


def measure(
    meter: Meter,
    layers: Iterable[Callable[[], None]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy:
    """`layers`: each runs one layer, to its end, and comes when those before are done."""
    start, before = clock(), meter.energy_uj()
    powers = [meter.power_w()]
    sleep(IDLE_S)
    powers.append(meter.power_w())
    by_counter = _watts(before, meter.energy_uj(), clock() - start)
    readable = [p for p in powers if p is not None]
    by_power = float(np.mean(readable)) if readable else math.nan
    found = [_loop(meter, layer, clock, by_counter, by_power) for layer in layers]
    return Energy(
        by_counter_uj=np.array([counter for counter, _ in found]),
        by_power_uj=np.array([power for _, power in found]),
        idle_power_w=by_power if math.isnan(by_counter) else by_counter,
    )


def _loop(
    meter: Meter,
    layer: Callable[[], None],
    clock: Callable[[], float],
    idle_counter_w: float,
    idle_power_w: float,
) -> tuple[float, float]:
    layer()
    start, before = clock(), meter.energy_uj()
    readings = [(start, meter.power_w())]
    loops = 0
    while clock() - start < LOOP_S:
        layer()
        loops += 1
        if clock() - readings[-1][0] >= POWER_EVERY_S:
            readings.append((clock(), meter.power_w()))
    after, end = meter.energy_uj(), clock()
    passed = end - start
    counter = (_watts(before, after, passed) - idle_counter_w) * passed * 1e6 / loops
    watts = [power for _, power in readings if power is not None]
    if len(watts) < 2:
        return counter, math.nan
    times = np.array([at for at, power in readings if power is not None])
    joules = float(np.sum(np.diff(times) * (np.array(watts[1:]) + watts[:-1]) / 2))
    mean_w = joules / float(times[-1] - times[0])
    return counter, (mean_w - idle_power_w) * passed * 1e6 / loops


def _watts(before_uj: float | None, after_uj: float | None, seconds: float) -> float:
    if before_uj is None or after_uj is None or seconds <= 0:
        return math.nan
    return (after_uj - before_uj) / 1e6 / seconds
