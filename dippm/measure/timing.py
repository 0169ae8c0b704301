"""Wall time and CUDA-event time of single steps, after a settled warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from dippm.base.progress import tell
from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent

AGREEMENT = 0.01
"""Two warm-up windows agree below this relative difference (design: 1 %)."""
WINDOW_MS = 25.0
"""Least duration of a warm-up window, so that two of them give the clocks 50 ms to rise."""
QUEUE_MS = 100.0
"""Approximate duration of queued steps."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The warm-up before the timed steps.

    Attributes:
        first_call_ms: time of the call before the warm-up, which loads, compiles and allocates; it
            is neither a warm-up step nor a timed one.
        steps: number of warm-up steps.
        settled: whether its last two windows agreed, or the reason why there were no two.
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
        between: called before, amid and after the timed steps, outside of every timed span.
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
    """Run windows until two agree or the time is over, not counting the first call."""
    first_call_ms, _ = watch(step)
    windows: list[list[float]] = []
    begin, spent_s = time.monotonic(), 0.0
    while len(windows) < 2 or not _agree(windows[-2:]):
        if windows and spent_s > settings.settle_s:
            break
        windows.append(_window(step, watch, settings.warm_up_steps))
        spent_s = time.monotonic() - begin
    steps = sum(map(len, windows))
    settled = _agree(windows[-2:]) if len(windows) > 1 else Absent(_alone(steps, spent_s, settings))
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
    """Return whether the medians of two windows agree: a single late step does not count."""
    first, second = map(median, pair)
    return abs(first - second) <= AGREEMENT * max(first, second)


def _alone(steps: int, spent_s: float, settings: Settings) -> str:
    return (
        f"one window of {steps} warm-up steps took {spent_s:.2g} s, more than the "
        f"{settings.settle_s:g} s that the warm-up may last"
    )
