"""Metrics of a call's own clock: time, latency, throughput, time on a GPU."""

from __future__ import annotations

import sys
from typing import Any

from dippm.measure.readings import Absent
from dippm.umlaut.metric import Metric, PerEntry


class TimeMetric(Metric):
    """Wall time of a call."""

    measure_type, name, unit = "time", "time_s", "s"
    about = "wall time, by the monotonic clock"
    priority = 0

    def end(self, begun: Any, seconds: float) -> float:
        """Return the time in s."""
        return seconds


class LatencyMetric(PerEntry):
    """Time per entry."""

    measure_type, name, unit = "latency", "latency_s", "s/entry"
    about = "wall time of the call by the entries that were tracked in it"
    priority = 0

    def end(self, begun: Any, seconds: float) -> float:
        """Return s per entry."""
        return seconds / float(begun)


class ThroughputMetric(PerEntry):
    """Entries per second."""

    measure_type, name, unit = "throughput", "throughput_per_s", "entries/s"
    about = "entries that were tracked in the call by its wall time"
    priority = 0

    def end(self, begun: Any, seconds: float) -> float:
        """Return entries per s."""
        return float(begun) / seconds


class GPUTimeMetric(Metric):
    """Time between two CUDA events; a call ends when its work on the GPU has."""

    measure_type, name, unit = "gputime", "gpu_time_s", "s"
    about = "span between CUDA events on the current stream of torch"

    def begin(self) -> Any:
        """Record an event; the reason if there is no GPU."""
        torch = sys.modules.get("torch")
        if torch is None:
            return Absent("this process has not imported torch")
        if not torch.cuda.is_available():
            return Absent(f"torch {torch.__version__} sees no CUDA device here")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        return events

    def end(self, begun: Any, seconds: float) -> float | Absent:
        """Wait for the second event and return s."""
        if isinstance(begun, Absent):
            return begun
        begun[1].record()
        begun[1].synchronize()
        return float(begun[0].elapsed_time(begun[1])) / 1000
