"""What is measured over a single call, in the process that makes it.

To add a metric: a class with `start`, which is called before each call and returns an object whose
`stop` is called after it. Calls may overlap, so what belongs to one is kept in that object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from dippm.measure.readings import Absent


class Measuring(Protocol):
    """One call under way."""

    def stop(self) -> Mapping[str, float | Absent]:
        """Return what was measured, by full name with unit ("time_s"), or why it was not."""
        ...


class CallMetric(Protocol):
    """Measures calls.

    Attributes:
        name: for people and for reasons of absence.
    """

    @property
    def name(self) -> str:
        """Name of the metric, for instance "time"."""
        ...

    def start(self) -> Measuring:
        """Begin to measure a call."""
        ...


class Time:
    """Seconds from the start of a call to its end: of a generator, to its last item."""

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
    """Return metrics by name or as they are.

    Raises:
        UnknownNameError: if there is none of a name.
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
    """The metrics of one call; whatever one of them raises becomes a reason of absence."""

    __slots__ = ("_absent", "_started")

    def __init__(self, metrics: tuple[CallMetric, ...]) -> None:
        """Start them in order."""
        self._absent: dict[str, str] = {}
        self._started: list[tuple[CallMetric, Measuring]] = []
        for metric in metrics:
            try:
                self._started.append((metric, metric.start()))
            except Exception as error:
                self._absent[_name(metric)] = f"{type(error).__name__}: {error}"

    def stop(self) -> tuple[dict[str, float], dict[str, str]]:
        """Stop them, the last first; return values, and reasons of what has none."""
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
