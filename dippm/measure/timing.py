"""Timing of steps, with warm and with cold caches, and the kinds of time in a row.

    W    wall time of a synchronised step, as a caller sees it
    E    time between CUDA events around it, without the wait for the host to notice its end
    K    sum of its kernels, from a profiled step: the work of the device

For a short step W and E include the launch overhead, K only the work. Steps are timed one by one
after a warm-up that has settled.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import TYPE_CHECKING, Any, Literal, cast

from dippm.base.progress import tell
from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent

if TYPE_CHECKING:
    import torch

AGREEMENT = 0.01
"""Two warm-up windows agree below this relative difference (design: 1 %)."""
WINDOW_MS = 25.0
"""Least duration of a warm-up window, so that two of them give the clocks 50 ms to rise."""
QUEUE_MS = 100.0
"""Approximate total duration of queued steps."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The warm-up before the timed steps.

    Attributes:
        first_call_ms: time of the call before the warm-up, which loads, compiles and allocates; it
            is neither a warm-up step nor a timed one.
        steps: number of warm-up steps.
        settled: whether its last two windows agreed, or the reason why there is only one.
    """

    first_call_ms: float
    steps: int
    settled: bool | Absent


@dataclass(frozen=True, slots=True)
class Timings:
    """The times of a stopwatch.

    Attributes:
        wall_ms: time of each timed step, from its call until the device has finished it.
        event_ms: time between CUDA events around the same steps; empty on a CPU.
        warm_up: warm-up before them.
    """

    wall_ms: tuple[float, ...]
    event_ms: tuple[float, ...]
    warm_up: WarmUp


class HostStopwatch:
    """Times steps that are finished when they return."""

    def __call__(self, step: Step) -> tuple[float, float | None]:
        """Run a step; return its wall time in ms and None, since there are no events."""
        start = time.perf_counter_ns()
        step()
        return (time.perf_counter_ns() - start) / 1e6, None

    def mark(self) -> Callable[[], object]:
        """Return a function that waits for the steps so far: it does nothing."""
        return self.finish

    def finish(self) -> None:
        """Do nothing: steps are finished when they return."""


class CudaStopwatch:
    """Times steps that run on after they return; `device` is a `torch.device`."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._synchronize = torch.cuda.synchronize
        self._new_event = torch.cuda.Event
        with torch.cuda.device(device):
            self._first = torch.cuda.Event(enable_timing=True)
            self._last = torch.cuda.Event(enable_timing=True)

    def __call__(self, step: Step) -> tuple[float, float | None]:
        """Run a step to its end; return its wall time and its time between events, in ms."""
        self._synchronize(self._device)
        start = time.perf_counter_ns()
        self._first.record()
        step()
        self._last.record()
        self._synchronize(self._device)
        wall_ms = (time.perf_counter_ns() - start) / 1e6
        return wall_ms, self._first.elapsed_time(self._last)

    def mark(self) -> Callable[[], object]:
        """Return a function that waits for the steps queued so far, but for no later one."""
        event = self._new_event()
        event.record()
        return cast(Callable[[], object], event.synchronize)

    def finish(self) -> None:
        """Wait for all queued steps."""
        self._synchronize(self._device)


Stopwatch = HostStopwatch | CudaStopwatch


def stopwatch(device: Any) -> Stopwatch:
    """Return the stopwatch of a `torch.device`."""
    return CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()


def time_steps(
    step: Step,
    watch: Stopwatch,
    settings: Settings,
    *,
    between: Callable[[], object] = lambda: None,
) -> Timings:
    """Run a first call, warm up, then time single steps.

    Args:
        step: one forward pass, or one training step.
        watch: stopwatch of the device.
        settings: numbers of steps and lengths of windows.
        between: function that is called before, halfway through and after the timed steps, outside
            of every timed span.
    """
    tell("warming up")
    warm_up = _warm_up(step, watch, settings)
    tell(f"timing {settings.timed_steps} steps")
    seen = []
    between()
    for i in range(settings.timed_steps):
        seen.append(watch(step))
        if i == settings.timed_steps // 2:
            between()
    between()
    wall_ms = tuple(wall for wall, _ in seen)
    event_ms = tuple(event for _, event in seen if event is not None)
    return Timings(wall_ms, event_ms, warm_up)


def time_queued(step: Step, watch: CudaStopwatch, *, step_ms: float) -> float:
    """Return the mean time in ms of steps that are queued without waiting.

    The launch of a step then overlaps the work of the previous one, so short steps show the time of
    the device where single steps show the time of the host.
    """
    count = min(max(round(QUEUE_MS / max(step_ms, 1e-3)), 2), 1000)
    watch.finish()
    start = time.perf_counter_ns()
    for _ in range(count):
        step()
    watch.finish()
    return (time.perf_counter_ns() - start) / 1e6 / count


def _warm_up(step: Step, watch: Stopwatch, settings: Settings) -> WarmUp:
    """Run a first call, then windows of steps until two successive ones agree or time is up."""
    first_call_ms, _ = watch(step)
    windows: list[list[float]] = []
    begin, spent_s = time.monotonic(), 0.0
    while len(windows) < 2 or not _agree(windows[-2:]):
        if windows and spent_s > settings.settle_s:
            break
        windows.append(_window(step, watch, settings.warm_up_steps))
        spent_s = time.monotonic() - begin
    steps = sum(map(len, windows))
    settled = (
        _agree(windows[-2:])
        if len(windows) > 1
        else Absent(_one_window_text(steps, spent_s, settings))
    )
    return WarmUp(first_call_ms, steps, settled)


def _window(step: Step, watch: Stopwatch, least: int) -> list[float]:
    """Return the times of at least `least` steps, which together last long enough."""
    times: list[float] = []
    total_ms = 0.0
    while len(times) < max(least, 1) or total_ms < WINDOW_MS:
        times.append(watch(step)[0])
        total_ms += times[-1]
    return times


def _agree(pair: Sequence[Sequence[float]]) -> bool:
    """Return whether two windows agree by their medians, which a single late step cannot move."""
    first, second = map(median, pair)
    return abs(first - second) <= AGREEMENT * max(first, second)


def _one_window_text(steps: int, spent_s: float, settings: Settings) -> str:
    return (
        f"one window of {steps} warm-up steps took {spent_s:.2g} s, more than the "
        f"{settings.settle_s:g} s that the warm-up may last"
    )


# Cold steps: the inputs of an operator are evicted before each of them.
#
# Repeated steps on the same tensors find them in the L2 cache of a GPU, as far as they fit; within
# a network an operator finds part of its inputs there. Both extremes are measured. Before each cold
# step a buffer of several times the cache is read, not written: writing back dirty lines would take
# bandwidth from the step.


BUFFER_CACHES = 4
"""Buffer size in cache sizes, enough for any replacement policy and for split caches."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
NOT_COLD = Absent("operators alone are measured with cold caches")
NO_ROOM = Absent("no memory was left for the buffer that empties the caches")
COLD_NAMES = ("cold_latency_ms", "cold_event_ms")


def cache_bytes(device: torch.device) -> int | Absent:
    """Return the size of the last-level cache of a device, or the reason why it is unknown."""
    import torch

    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        return int(size) or Absent("torch does not know the size of the L2 cache")
    sizes = [_cache_size_bytes(path) for path in CACHES.glob("index*/size")]
    return max(sizes, default=0) or Absent(f"{CACHES} does not say the size of a cache")


def displacer(device: torch.device) -> Callable[[], object] | Absent:
    """Return a function that evicts the caches of a device, or the reason why there is none."""
    import torch

    size = cache_bytes(device)
    if isinstance(size, Absent):
        return size
    buffer = torch.ones(BUFFER_CACHES * size // 4, dtype=torch.float32, device=device)
    return buffer.sum


def cold_columns(
    step: Step, watch: Stopwatch, displace: Callable[[], object], steps: int
) -> dict[str, Any]:
    """Time steps with cold caches; return their columns, each a value or `Absent`.

    Args:
        step: step that has run before.
        watch: stopwatch of the device; it waits before each step.
        displace: function that evicts the caches, see `displacer`.
        steps: number of steps.
    """
    tell(f"timing {steps} steps with cold caches")
    seen = []
    for _ in range(steps):
        displace()
        seen.append(watch(step))
    events = [event for _, event in seen if event is not None]
    wall_ms = fmean(wall for wall, _ in seen)
    return dict(zip(COLD_NAMES, (wall_ms, fmean(events) if events else NO_EVENTS), strict=True))


def _cache_size_bytes(path: Path) -> int:
    """Return the size in a file such as "32768K", 0 without one."""
    try:
        found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    except OSError:
        return 0
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


# The columns of a row.


Letter = Literal["W", "E", "K"]
COLUMNS: Mapping[Letter, str] = {"W": "latency_ms", "E": "event_ms", "K": "kernel_ms"}
"""Columns by kind; those of an operator with cold caches have the prefix "cold_"."""
COLD = "cold_"
ONE_STEP = Absent("one step only")
NO_EVENTS = Absent("no CUDA events on this device")


@dataclass(frozen=True, slots=True)
class Timed:
    """One time in a row.

    Attributes:
        timer: kind of time.
        latency_ms: time of a step.
        cold: whether the inputs of the step were evicted from the caches before it; False for whole
            models, which leave the caches to their own steps.
    """

    timer: Letter
    latency_ms: float
    cold: bool


def times_of(row: Mapping[str, Any]) -> Iterator[Timed]:
    """Yield every time in a row; each is a training label of its own.

    Args:
        row: columns of `dippm.measure.columns`; null and missing ones are skipped.
    """
    for cold in (False, True):
        for letter, column in COLUMNS.items():
            value = row.get(f"{COLD}{column}" if cold else column)
            if value is not None and value == value:  # tables have NaN for null
                yield Timed(letter, float(value), cold)


def latency_columns(timings: Timings) -> dict[str, Any]:
    """Return the columns of the kinds W and E, each a value or `Absent`."""
    wall, events = timings.wall_ms, timings.event_ms
    many = len(wall) > 1
    return {
        "timer": "wall",
        "latency_ms": fmean(wall),
        "latency_median_ms": median(wall),
        "latency_sd_ms": stdev(wall) if many else ONE_STEP,
        "latency_min_ms": min(wall),
        "latency_p95_ms": quantiles(wall, n=20, method="inclusive")[-1] if many else ONE_STEP,
        "latencies_ms": list(wall),
        "event_ms": fmean(events) if events else NO_EVENTS,
        "event_median_ms": median(events) if events else NO_EVENTS,
        "events_ms": list(events) if events else NO_EVENTS,
        "first_call_ms": timings.warm_up.first_call_ms,
        "warm_up_steps": timings.warm_up.steps,
        "warm_up_settled": timings.warm_up.settled,
        "timed_steps": len(wall),
    }
