"""The kinds of time in a row: wall time of steps, time between events, sum of kernels.

    W    wall time of a synchronised step, as a caller sees it
    E    time between CUDA events around it, without the wait for the host to notice its end
    K    sum of its kernels, from a profiled step: the work of the device

A short step includes its launch overhead in W and E, and only its work in K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median, quantiles, stdev
from typing import Any, Literal

from dippm.measure.readings import Absent
from dippm.measure.timing import Timings

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
    """Yield every time in a row: each is a label of its own.

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
