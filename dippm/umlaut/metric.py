"""`Metric`: a quantity of a call, one small class each.

To add one: a subclass with `measure_type`, `name` and `unit`, and `begin` and `end`; see
`examples/umlaut_metric.py`. An exception in it becomes the reason for its absence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

from dippm.measure.readings import Absent
from dippm.runs.tracking.metrics import Measuring


class Metric:
    """One quantity of each call; a `CallMetric` of `dippm.runs.tracking.metrics`.

    Attributes:
        measure_type: kind of row in UMLAUT's notation: "time", "memory".
        name: full name with unit, the key in a span.
        unit: unit for display.
        about: description in one line.
        priority: the metric with the highest priority starts first and ends last.
        description: the user's description, by default the kind.
    """

    measure_type: ClassVar[str] = "metric"
    name: ClassVar[str] = "metric"
    unit: ClassVar[str] = ""
    about: ClassVar[str] = ""
    priority: ClassVar[int] = 1

    def __init__(self, description: str = "") -> None:
        self.description = description or self.measure_type

    def begin(self) -> Any:
        """Return the state at the start of a call, for `end`."""
        return None

    def end(self, begun: Any, seconds: float) -> float | Absent:
        """Return the value of a call, or the reason why it has none.

        Args:
            begun: result of `begin` for this call; calls may be nested and concurrent, so their
                state must not be stored in the object.
            seconds: duration of the call.
        """
        raise NotImplementedError

    def start(self) -> Measuring:
        """Start measuring a call."""
        return _Measuring(self, self.begin())


class _Measuring:
    __slots__ = ("_begun", "_metric", "_start_ns")

    def __init__(self, metric: Metric, begun: Any) -> None:
        self._metric, self._begun = metric, begun
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> Mapping[str, float | Absent]:
        seconds = (time.perf_counter_ns() - self._start_ns) / 1e9
        return {self._metric.name: self._metric.end(self._begun, seconds)}


class PerEntry(Metric):
    """A metric per entry that a call handled."""

    def __init__(self, description: str = "") -> None:
        super().__init__(description)
        self._entries: float | None = None
        self._innermost: ContextVar[_Counting | None] = ContextVar("innermost", default=None)

    def track(self, num_entries: float) -> None:
        """Set the number of entries of the current call, or of all later ones outside of a call."""
        counting = self._innermost.get()
        if counting is None:
            self._entries = float(num_entries)
        else:
            counting.entries = float(num_entries)

    def start(self) -> Measuring:
        """Start measuring a call."""
        return _Counting(self)


class _Counting:
    __slots__ = ("_around", "_metric", "_start_ns", "entries")

    def __init__(self, metric: PerEntry) -> None:
        self._metric = metric
        self._around = metric._innermost.get()
        self.entries: float | None = None
        metric._innermost.set(self)
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> Mapping[str, float | Absent]:
        seconds = (time.perf_counter_ns() - self._start_ns) / 1e9
        metric = self._metric
        metric._innermost.set(self._around)
        entries = metric._entries if self.entries is None else self.entries
        if entries is None:
            answer: float | Absent = Absent("track(n) was not called with the number of entries")
        elif not (entries > 0 and seconds > 0):
            answer = Absent(f"{entries:g} entries in {seconds:g} s")
        else:
            answer = metric.end(entries, seconds)
        return {metric.name: answer}


class Sampled(Metric):
    """A quantity that a sampler process reads at intervals.

    Attributes:
        source: name of the source in `dippm.measure.sources`.
        quantity: quantity of the source.
        reducer: reduction of a call's readings to one value: "max" or "mean"; for a counter "rate"
            (per second, times `factor`) or "delta".
        factor: factor of a rate.
        interval: time between readings, in s.
        device: GPU by NVML index or UUID; None for none.
    """

    source: ClassVar[str]
    quantity: ClassVar[str]
    reducer: ClassVar[str] = "mean"
    factor: ClassVar[float] = 1.0
    priority: ClassVar[int] = 2

    def __init__(
        self, description: str = "", interval: float = 1.0, id: int | str | None = None
    ) -> None:
        super().__init__(description)
        if not interval >= 0.001:
            raise ValueError(f"interval is {interval}: give seconds, 0.001 at least")
        self.interval = float(interval)
        self.device = id


# Metrics of the calling process: time, latency, throughput, time on a GPU.


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
    """Time between two CUDA events; a call ends when its work on the GPU does."""

    measure_type, name, unit = "gputime", "gpu_time_s", "s"
    about = "span between CUDA events on the current stream of torch"

    def begin(self) -> Any:
        """Record an event; return the reason if there is no GPU."""
        torch = sys.modules.get("torch")
        if torch is None:
            return Absent("this process has not imported torch")
        if not torch.cuda.is_available():
            return Absent(f"torch {torch.__version__} sees no CUDA device here")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        return events

    def end(self, begun: Any, seconds: float) -> float | Absent:
        """Wait for the second event and return the time in s."""
        if isinstance(begun, Absent):
            return begun
        begun[1].record()
        begun[1].synchronize()
        return float(begun[0].elapsed_time(begun[1])) / 1000


# Sampled metrics: quantities of `dippm.measure.sources`.


class MemoryMetric(Sampled):
    """Resident memory of the process and its descendants."""

    measure_type, name, unit = "memory", "tree.rss_mb", "MiB"
    source, quantity, reducer = "tree", "rss_mb", "max"
    about = "resident memory of the process tree; one value is the most"


class CPUMetric(Sampled):
    """CPU use of the process and its descendants."""

    measure_type, name, unit = "cpu", "tree.cpu_percent", "%"
    source, quantity, reducer, factor = "tree", "cpu_s", "rate", 100.0
    about = "CPU time of the process tree by wall time; 100 % is one core"


class EnergyMetric(Sampled):
    """Energy of the host's CPU packages; UMLAUT's number is in µJ."""

    measure_type, name, unit = "energy", "rapl.package_energy_j", "J"
    source, quantity, reducer = "rapl", "package_energy_j", "delta"
    about = "RAPL package counter of the whole host"


class PowerMetric(Sampled):
    """Power of the host's CPU packages."""

    measure_type, name, unit = "power", "rapl.package_power_w", "W"
    source, quantity, reducer = "rapl", "package_energy_j", "rate"
    about = "RAPL package counter of the whole host by time"


class _OnGpu(Sampled):
    """A metric of one GPU, or MIG slice."""

    def __init__(self, description: str = "", interval: float = 1.0, id: int | str = 0) -> None:
        super().__init__(description, interval, id)


class GPUMetric(_OnGpu):
    """Share of time in which the GPU ran a kernel."""

    measure_type, name, unit = "gpu", "nvml.utilization_percent", "%"
    source, quantity, reducer = "nvml", "utilization_percent", "mean"
    about = "of the whole GPU, all processes"


class GPUMemoryMetric(_OnGpu):
    """Memory in use on a GPU."""

    measure_type, name, unit = "gpumemory", "nvml.memory_used_mb", "MiB"
    source, quantity, reducer = "nvml", "memory_used_mb", "max"
    about = "of the whole GPU or slice, all processes; one value is the most"


class GPUPowerMetric(_OnGpu):
    """Power of a GPU."""

    measure_type, name, unit = "gpupower", "nvml.power_w", "W"
    source, quantity, reducer = "nvml", "power_w", "mean"
    about = "of the whole board"


class GPUEnergyMetric(_OnGpu):
    """Energy of a GPU; not available in UMLAUT."""

    measure_type, name, unit = "gpuenergy", "nvml.energy_j", "J"
    source, quantity, reducer = "nvml", "energy_j", "delta"
    about = "the board's energy counter"
