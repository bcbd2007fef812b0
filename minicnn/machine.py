"""What the machine did meanwhile: memory of this process, processors taken by others, preemptions."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path


def process_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def preemptions() -> int:
    """Times so far that the system took a processor from a thread of ours that wanted to go on."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Processor time so far. Units    seconds; `all_s` over all processors, of all processes"""

    at_s: float
    all_s: float
    own_s: float

    def others_since(self, earlier: Busy) -> float:
        """Processors that others kept busy between two looks; the system counts in hundredths of a second."""
        passed = self.at_s - earlier.at_s
        others = (self.all_s - earlier.all_s) - (self.own_s - earlier.own_s)
        return max(others, 0.0) / passed if passed > 0 else 0.0


def busy(root: Path = Path("/proc")) -> Busy | None:
    """None where the system doesn't say."""
    try:
        fields = (root / "stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq = (int(f) for f in fields[:7])
    except (OSError, ValueError):
        return None
    ticks = user + nice + system + irq + softirq
    own = os.times()
    return Busy(
        at_s=time.monotonic(), all_s=ticks / os.sysconf("SC_CLK_TCK"), own_s=own.user + own.system
    )
