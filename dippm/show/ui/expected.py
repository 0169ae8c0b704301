"""`expected`: the predicted value of a measured stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dippm.errors import RunError
from dippm.runs.tracking.steps import USUAL, timed_steps
from dippm.show.ui.opened import OpenedRun
from dippm.show.ui.streams import CALLS

ON_GPU = {
    "nvml_processes.tree_memory_mb": "memory_mb",
    "nvml.power_w": "power_w",
    "nvml.power_instant_w": "power_w",
    "nvml.energy_j": "power_w",
}
ON_CPU = {"tree.rss_mb": "memory_mb", "rapl.package_energy_j": "power_w"}
COUNTERS = ("nvml.energy_j", "rapl.package_energy_j")
"""Cumulative energy counters, whose rate is a power."""


class PredictedValue(NamedTuple):
    """A predicted value with its interval.

    Attributes:
        target: target with its unit: "latency_ms".
        value: predicted value.
        low: lower end of the interval; None without one.
        high: upper end of the interval.
        coverage: probability of the interval, 0 to 1.
    """

    target: str
    value: float
    low: float | None
    high: float | None
    coverage: float | None


def expected(run: OpenedRun, key: str, *, rates: bool) -> PredictedValue | None:
    """Return the predicted value of a stream; None without one.

    The latency of a step belongs to the spans that `dippm compare-run` would time, the memory to
    that of the process tree on the predicted device, and the power to that of its board.

    Args:
        run: run with a prediction.
        key: key of the stream.
        rates: whether counters are drawn as rates.
    """
    foretold = run.prediction
    if foretold is None:
        return None
    target = _target(run, key, rates)
    value = foretold.get(target) if target else None
    if target is None or not isinstance(value, int | float):
        return None
    intervals = foretold.get("intervals")
    interval = intervals.get(target) if isinstance(intervals, Mapping) else None
    low, high, coverage = (_number(interval, name) for name in ("low", "high", "coverage"))
    return PredictedValue(target, float(value), low, high, coverage)


def _target(run: OpenedRun, key: str, rates: bool) -> str | None:
    if key.startswith(CALLS):
        return "latency_ms" if key == CALLS + _steps(run) else None
    if key in COUNTERS and not rates:
        return None
    conditions = (run.prediction or {}).get("conditions")
    device = conditions.get("device") if isinstance(conditions, Mapping) else ""
    source, _, quantity = key.partition(".")
    plain = f"{source.partition(':')[0]}.{quantity}"  # "nvml:1" is one of several devices
    return (ON_CPU if str(device).startswith("CPU") else ON_GPU).get(plain)


def _steps(run: OpenedRun) -> str:
    try:
        return timed_steps(run.spans).name
    except RunError:  # too few for a latency, but still the predicted spans
        names = {span.name for span in run.spans}
        return USUAL if USUAL in names else next(iter(names)) if len(names) == 1 else ""


def _number(interval: Any, name: str) -> float | None:
    value = interval.get(name) if isinstance(interval, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
