"""Wall time and CUDA-event time of single steps, after a warm-up that has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dippm.measure.protocol import Settings
from dippm.progress import tell

AGREEMENT = 0.01
"""Two warm-up windows that differ by less have settled (design: 1 %)."""
QUEUE_MS = 100.0
"""About how long queued steps run."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timings:
    """What a stopwatch saw.

    Attributes:
        wall_ms: each timed step, from its call until the device has finished it.
        event_ms: span between CUDA events around the same steps; empty on a CPU.
        warm_up_steps: untimed steps before.
        settled: whether the last two warm-up windows agreed; None if only one fitted into the
            time that `Settings.settle_s` allows.
    """

    wall_ms: tuple[float, ...]
    event_ms: tuple[float, ...]
    warm_up_steps: int
    settled: bool | None


class HostStopwatch:
    """Times steps that are finished when they return."""

    def __call__(self, step: Step) -> tuple[float, float | None]:
        """Run a step; return its wall time in ms and None, for there are no events."""
        start = time.perf_counter_ns()
        step()
        return (time.perf_counter_ns() - start) / 1e6, None

    def finish(self) -> None:
        """Nothing is in flight."""


class CudaStopwatch:
    """Times steps that run on after they return; `device` is a `torch.device`."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._synchronize = torch.cuda.synchronize
        with torch.cuda.device(device):
            self._first = torch.cuda.Event(enable_timing=True)
            self._last = torch.cuda.Event(enable_timing=True)

    def __call__(self, step: Step) -> tuple[float, float | None]:
        """Run a step to its end; return its wall time and its span between events, in ms."""
        self._synchronize(self._device)
        start = time.perf_counter_ns()
        self._first.record()
        step()
        self._last.record()
        self._synchronize(self._device)
        wall_ms = (time.perf_counter_ns() - start) / 1e6
        return wall_ms, self._first.elapsed_time(self._last)

    def finish(self) -> None:
        """Wait for everything in flight."""
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
    """Warm up, then time single steps.

    Args:
        step: one forward pass, or one training step.
        watch: of the device that the step runs on.
        settings: how many and how long.
        between: called before, amid and after the timed steps, outside of every timed span.
    """
    tell("warming up")
    warm_up_steps, settled = _warm_up(step, watch, settings)
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
    return Timings(wall_ms, event_ms, warm_up_steps, settled)


def time_queued(step: Step, watch: CudaStopwatch, *, step_ms: float) -> float:
    """Return the mean time in ms of steps that follow each other without waiting.

    The launch of a step then overlaps the work of the one before, so short steps show the time of
    the device where single steps show the time of the host.
    """
    count = min(max(round(QUEUE_MS / max(step_ms, 1e-3)), 2), 1000)
    watch.finish()
    start = time.perf_counter_ns()
    for _ in range(count):
        step()
    watch.finish()
    return (time.perf_counter_ns() - start) / 1e6 / count


def _warm_up(step: Step, watch: Stopwatch, settings: Settings) -> tuple[int, bool | None]:
    """Run windows of `warm_up_steps` until two agree or the time is over."""
    begin = time.monotonic()
    windows: list[float] = []
    while len(windows) < 2 or not _agree(windows[-2:]):
        if windows and time.monotonic() - begin > settings.settle_s:
            break
        windows.append(fmean(watch(step)[0] for _ in range(max(settings.warm_up_steps, 1))))
    settled = _agree(windows[-2:]) if len(windows) > 1 else None
    return len(windows) * max(settings.warm_up_steps, 1), settled


def _agree(pair: Sequence[float]) -> bool:
    return abs(pair[0] - pair[1]) <= AGREEMENT * max(pair)
