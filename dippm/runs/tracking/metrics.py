"""Metrics of single calls, measured in the calling process.

To add a metric: a class whose `start` is called before each call and returns an object whose `stop`
is called after it. Calls may overlap, so the state of a call belongs in that object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from dippm.measure.readings import Absent


class Measuring(Protocol):
    """A metric of one call in progress."""

    def stop(self) -> Mapping[str, float | Absent]:
        """Return values by full name with unit ("time_s"), or the reason why there is none."""
        ...


class CallMetric(Protocol):
    """Measures calls.

    Attributes:
        name: name in output and in reasons of absence.
    """

    @property
    def name(self) -> str:
        """Name of the metric, for instance "time"."""
        ...

    def start(self) -> Measuring:
        """Start measuring a call."""
        ...


class Time:
    """Seconds from the start of a call to its end; for a generator, to its last item."""

    name = "time"

    def start(self) -> Measuring:
        """Read the clock."""
        return _Timing()


class _Timing:
    __slots__ = ("_start_ns",)

    def __init__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> Mapping[str, float | Absent]:
        return {"time_s": (time.perf_counter_ns() - self._start_ns) / 1e9}


BUILT_IN: dict[str, Callable[[], CallMetric]] = {"time": Time}


def call_metrics(metrics: Iterable[str | CallMetric]) -> tuple[CallMetric, ...]:
    """Return metrics, looked up by name where they are given as text.

    Raises:
        UnknownNameError: if a metric does not exist.
    """
    found = []
    for metric in metrics:
        if isinstance(metric, str):
            if metric not in BUILT_IN:
                from dippm.errors import UnknownNameError

                raise UnknownNameError.of("metric of a call", metric, BUILT_IN)
            metric = BUILT_IN[metric]()
        found.append(metric)
    return tuple(found)


class Measurement:
    """The metrics of one call; an error in one of them becomes its reason of absence."""

    __slots__ = ("_absent", "_started")

    def __init__(self, metrics: tuple[CallMetric, ...]) -> None:
        """Start all metrics in order."""
        self._absent: dict[str, str] = {}
        self._started: list[tuple[CallMetric, Measuring]] = []
        for metric in metrics:
            try:
                self._started.append((metric, metric.start()))
            except Exception as error:
                self._absent[_name(metric)] = f"{type(error).__name__}: {error}"

    def stop(self) -> tuple[dict[str, float], dict[str, str]]:
        """Stop all metrics in reverse; return their values, and the reasons for missing ones."""
        values: dict[str, float] = {}
        absent = self._absent
        for metric, measuring in reversed(self._started):
            try:
                for name, value in measuring.stop().items():
                    if isinstance(value, Absent):
                        absent[name] = value.reason
                    else:
                        values[name] = float(value)
            except Exception as error:
                absent[_name(metric)] = f"{type(error).__name__}: {error}"
        return values, absent


def _name(metric: CallMetric) -> str:
    try:
        return str(metric.name)
    except Exception:
        return type(metric).__name__
