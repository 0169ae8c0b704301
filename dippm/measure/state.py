"""State of the device while the timed steps ran: clocks, heat, limits, neighbours, load."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Any

from dippm.measure.readings import Absent, Readings, Source

MEANS = ("sm_clock_mhz", "memory_clock_mhz")
LAST = ("temperature_c", "power_cap_w")


class StateWatch:
    """Collects readings of NVML between timed steps.

    Args:
        nvml: the device's counters.
        processes: who else uses the device.
    """

    def __init__(self, nvml: Source, processes: Source) -> None:
        self._nvml, self._processes = nvml, processes
        self._seen: list[Readings] = []

    def look(self) -> None:
        """Read once."""
        self._seen.append(self._nvml.read())

    def columns(self) -> dict[str, Any]:
        """Return the columns of state, each a value or `Absent`; call it at the end."""
        throttle = [int(r.values["throttle"]) for r in self._seen if "throttle" in r.values]
        return {
            **{name: self._mean(name) for name in MEANS},
            **{name: self._last(name) for name in LAST},
            "throttle_reasons": _names(throttle) if throttle else self._last("throttle"),
            "other_processes": self._processes.read().get("other_processes"),
            "host_load": os.getloadavg()[0] / (os.cpu_count() or 1),
        }

    def _mean(self, name: str) -> float | Absent:
        values = [r.values[name] for r in self._seen if name in r.values]
        return fmean(values) if values else self._last(name)

    def _last(self, name: str) -> float | Absent:
        return self._seen[-1].get(name) if self._seen else Absent("nobody looked")


def _names(masks: list[int]) -> list[str]:
    from dippm.measure.sources.nvml import throttle_reasons

    return sorted({name for mask in masks for name in throttle_reasons(mask)})
