"""The regimes of time that a row has: whole steps by the wall, spans of events, sums of kernels.

    W    wall clock of a synchronised step: what a caller waits for
    E    span between CUDA events around it: without the wait for the host to notice its end
    K    sum of its kernels, from a profiled step: what the device works

A short step shows its launches in W and E, and only its work in K.
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
"""Columns by regime; an operator's figures with cold caches stand under "cold_" and their name."""
COLD = "cold_"
ONE_STEP = Absent("one step only")
NO_EVENTS = Absent("no CUDA events on this device")


@dataclass(frozen=True, slots=True)
class Timed:
    """One time of one row.

    Attributes:
        timer: its regime.
        latency_ms: of a step.
        cold: whether what the step reads was out of the caches before it; what is not an operator
            is as its own steps leave them.
    """

    timer: Letter
    latency_ms: float
    cold: bool


def times_of(row: Mapping[str, Any]) -> Iterator[Timed]:
    """Yield every time that a row has, in every regime: each is a label of its own.

    Args:
        row: has columns of `dippm.measure.columns`; what is null or missing is left out.
    """
    for cold in (False, True):
        for letter, column in COLUMNS.items():
            value = row.get(f"{COLD}{column}" if cold else column)
            if value is not None and value == value:  # tables have NaN for null
                yield Timed(letter, float(value), cold)


def latency_columns(timings: Timings) -> dict[str, Any]:
    """Return the columns of the regimes W and E, each a value or `Absent`."""
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
