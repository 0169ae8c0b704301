"""State of a device in each phase of a measurement: clocks, temperature, limits, load."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dippm.measure.readings import Absent, Readings, Source

WATCHED = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle")
"""Quantities that change quickly; all others are read once per point."""
BUSY = "utilization_percent"
PROCESSOR_TIMES = Path("/proc/stat")
BUSY_SHARE = 0.1
"""Share of all cores: if other processes take more, steps wait for them."""
BUSY_LOAD = 0.5
"""Runnable processes per core before a measurement, where the share of others is unknown."""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The load of the machine while a model was measured.

    Attributes:
        before: runnable processes of the machine before, mean of the last minute.
        after: runnable processes after, this process included.
        cores: number of cores.
        others_share: share of the time of all cores, 0 to 1, that other processes, or other
            machines on the same host, took meanwhile; None if the system does not report it.
    """

    before: float
    after: float
    cores: int
    others_share: float | None

    @property
    def is_busy(self) -> bool:
        """Whether other processes took enough to affect the times."""
        if self.others_share is None:
            return self.before / self.cores > BUSY_LOAD
        return self.others_share > BUSY_SHARE

    @property
    def words(self) -> str:
        """Load and share of others in one line."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        others = "" if self.others_share is None else f", others took {self.others_share:.0%}"
        return f"load {self.before:.1f} before, {self.after:.1f} after, on {cores}{others}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {**asdict(self), "busy": self.is_busy}


class LoadWatch:
    """Tracks the load of the machine from its creation on."""

    def __init__(self) -> None:
        self._before, self._busy_s, self._own_s = os.getloadavg()[0], *_processor_s()
        self._start = time.monotonic()

    def load(self) -> MachineLoad:
        """Return the load until now."""
        cores = os.cpu_count() or 1
        busy_s, own_s = _processor_s()
        share = None
        if busy_s is not None and self._busy_s is not None:
            all_s = cores * max(time.monotonic() - self._start, 1e-3)
            others_s = busy_s - self._busy_s - (own_s - self._own_s)
            share = min(max(others_s / all_s, 0.0), 1.0)
        return MachineLoad(self._before, os.getloadavg()[0], cores, share)


def _processor_s() -> tuple[float | None, float]:
    """Return busy and stolen seconds of all cores, and CPU seconds of this process.

    The first is None where the system does not report it; the second includes reaped children.
    """
    own_s = sum(os.times()[:4])
    try:
        words = PROCESSOR_TIMES.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, words[1:9])
    except (OSError, ValueError):
        return None, own_s
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None, own_s


class StateWatch:
    """Collects NVML readings in one phase.

    Args:
        nvml: counters of the device, with those of `WATCHED`.
        phase: prefix of the columns; "" for the timed steps.
        pause_s: least time between two readings.
    """

    def __init__(self, nvml: Source, phase: str = "", *, pause_s: float = 0.0) -> None:
        self._nvml, self._phase, self._pause_s = nvml, phase, pause_s
        self._seen: list[Readings] = []
        self._due_s = 0.0

    def look(self) -> None:
        """Take a reading, unless the last one is recent."""
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
