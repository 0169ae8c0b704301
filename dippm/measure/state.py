"""State of the device in each phase of a measurement: clocks, heat, limits, neighbours, load."""

from __future__ import annotations

import os
import time
from statistics import fmean
from typing import Any

from dippm.measure.readings import Absent, Readings, Source

WATCHED = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle")
"""What changes from one moment to the next; everything else is read once for a point."""
BUSY = "utilization_percent"


class StateWatch:
    """Collects readings of NVML in one phase.

    Args:
        nvml: counters of the device, `WATCHED` among them.
        phase: prefix of the columns; "" for the timed steps.
        pause_s: between two readings at least.
    """

    def __init__(self, nvml: Source, phase: str = "", *, pause_s: float = 0.0) -> None:
        self._nvml, self._phase, self._pause_s = nvml, phase, pause_s
        self._seen: list[Readings] = []
        self._due_s = 0.0

    def look(self) -> None:
        """Read once, unless the last time was just now."""
        now = time.monotonic()
        if now >= self._due_s:
            self._due_s = now + self._pause_s
            self._seen.append(self._nvml.read())

    def columns(self) -> dict[str, Any]:
        """Return the columns of the phase, each a value or `Absent`; call it at the end."""
        throttle = [int(r.values["throttle"]) for r in self._seen if "throttle" in r.values]
        return {
            f"{self._phase}sm_clock_mhz": self.mean("sm_clock_mhz"),
            f"{self._phase}memory_clock_mhz": self.mean("memory_clock_mhz"),
            f"{self._phase}temperature_c": self._last("temperature_c"),
            f"{self._phase}throttle_reasons": (
                _names(throttle) if throttle else self._last("throttle")
            ),
        }

    def mean(self, name: str) -> float | Absent:
        """Return the mean of a quantity over the phase."""
        values = [r.values[name] for r in self._seen if name in r.values]
        return fmean(values) if values else self._last(name)

    def _last(self, name: str) -> float | Absent:
        return self._seen[-1].get(name) if self._seen else Absent("nobody looked")


def host_load() -> float:
    """Return runnable processes per core of the host, a mean over one minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _names(masks: list[int]) -> list[str]:
    from dippm.measure.sources.nvml import throttle_reasons

    return sorted({name for mask in masks for name in throttle_reasons(mask)})
