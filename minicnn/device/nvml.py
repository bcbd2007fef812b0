"""NVIDIA's management library, by ctypes: energy counter, power, clocks, and why a GPU holds itself back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, MEMORY_CLOCK = 1, 2
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean less speed than asked for: power cap, hardware
# slowdown, heat by software and by hardware, power brake. Idle and clocks that somebody set are none.
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class Nvml:
    """One GPU, found by its place on the bus ("0000:3B:00.0"). What the GPU or driver can't tell is None.

    Raises    OSError: there is no such library; LookupError: it doesn't know this GPU
    """

    name = "NVML"

    def __init__(self, bus_id: str, library: Any = None):
        self._library = library or ctypes.CDLL(LIBRARY)
        self._handle = ctypes.c_void_p()
        status = self._library.nvmlInit_v2()
        if not status:
            status = self._library.nvmlDeviceGetHandleByPciBusId_v2(
                bus_id.encode(), ctypes.byref(self._handle)
            )
        if status:
            raise LookupError(f"NVML doesn't give {bus_id}: error {status}")

    def energy_uj(self) -> float | None:
        """The counter since the driver was loaded; it moves every few milliseconds to a tenth of a second."""
        found = self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if found is None else found * 1e3

    def power_w(self) -> float | None:
        """Now, or the mean of the last second: which of the two, the GPU's generation decides."""
        found = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return None if found is None else found / 1e3

    def clocks(self) -> Mapping[str, float]:
        clocks = {
            name: self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, which)
            for name, which in (("sm_mhz", SM_CLOCK), ("memory_mhz", MEMORY_CLOCK))
        }
        return {name: float(value) for name, value in clocks.items() if value is not None}

    def is_throttled(self) -> bool | None:
        found = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return None if found is None else bool(found & THROTTLED)

    def _number(self, name: str, kind: type[Any], *arguments: int) -> int | None:
        function = getattr(self._library, name, None)
        result = kind()
        if function is None or function(self._handle, *arguments, ctypes.byref(result)):
            return None
        return int(result.value)
