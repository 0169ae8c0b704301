"""The plan of the self-test and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes and repetitions of the self-test.

    Attributes:
        sleep_s: duration of the workload "sleep".
        sort_mb: size of the array that "sort" sorts.
        matmul: size of the square matrix that "matmul" multiplies with itself.
        repeats: number of repetitions.
        rates_hz: sampling rates to test.
        sources: names of the sources to sample.
        device: NVML index or UUID for sources of a GPU.
        watch_s: least time over which the sampler's CPU time is measured.
        limit_s: no repetition starts that would last longer than this; the first one always runs.
    """

    sleep_s: float = 5.0
    sort_mb: float = 128.0
    matmul: int = 2000
    repeats: int = 5
    rates_hz: tuple[float, ...] = (10.0, 100.0)
    sources: tuple[str, ...] = ("tree",)
    device: str = "0"
    watch_s: float = 2.0
    limit_s: float = 600.0

    def workloads(self) -> dict[str, float]:
        """Return name and size; a size of 0 skips a workload."""
        sizes = {"sleep": self.sleep_s, "sort": self.sort_mb, "matmul": float(self.matmul)}
        return {name: size for name, size in sizes.items() if size > 0}


@dataclass(frozen=True, slots=True)
class Targets:
    """The limits of the self-test.

    Attributes:
        cpu_percent: share of one core, by rate in Hz.
        rss_mb: resident memory of the sampler.
        slow_down_percent: slow-down of a workload; exceeded if the whole confidence interval is
            above.
        start_ms: CPU time of the sampler from its start to its first reading.
        inside_mb: memory that starting the sampler takes inside the workload.
        inside_ms: CPU time that starting the sampler takes inside the workload.
    """

    cpu_percent: dict[float, float] = field(default_factory=lambda: {10.0: 0.5, 100.0: 1.0})
    rss_mb: float = 20.0
    slow_down_percent: float = 1.0
    start_ms: float = 50.0
    inside_mb: float = 10.0
    inside_ms: float = 50.0


FULL = Plan(sleep_s=10.0, sort_mb=1024.0, matmul=10_000)
"""The sizes in the deliverable on UMLAUT's overhead: 10 s, 1 GB, 10,000 rows."""
