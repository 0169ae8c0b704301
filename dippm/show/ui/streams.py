"""Streams of a run over time: sampled series, reported values, and durations of calls.

The key of a stream names it in menus, in URLs and in saved settings:

    tree.rss_mb         a sampled series
    told: loss          a value that the run reported
    calls: forward      duration of each span of this name in ms
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.runs.store.columns import NUMBERS, Column
from dippm.runs.store.record import Span, Start, Value
from dippm.show.report.runs.charts import extremes

TOLD, CALLS = "told: ", "calls: "
MOST_OF_A_LINE = 4000
"""Number of points up to which a line is drawn unthinned."""
SETTLES_NS = 1_000_000_000
"""Time after which "tree.cpu_percent" has its first value."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A quantity over time.

    Attributes:
        key: key, see above.
        unit: unit of the values; "" for none.
        time_s: time since the start of the run in s, float64, [n], increasing.
        values: float64, [n]; NaN without a value.
        counter: whether it is a cumulative counter.
        reason: why values are missing; "" if none is.
        steps: training step that the run reported with each value, float64, [n]; None without.
    """

    key: str
    unit: str
    time_s: Any
    values: Any
    counter: bool = False
    reason: str = ""
    steps: Any = None
    _kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def least_and_greatest(self) -> tuple[Any, Any]:
        """Return time and values, thinned to the resolution of a screen; cached."""
        if len(self.values) <= MOST_OF_A_LINE:
            return self.time_s, self.values
        if "thinned" not in self._kept:
            rows = extremes(self.values, MOST_OF_A_LINE)
            self._kept["thinned"] = self.time_s[rows], self.values[rows]
        found: tuple[Any, Any] = self._kept["thinned"]
        return found

    def rate(self) -> Stream:
        """Return the rate of a counter between readings that differ; other streams unchanged."""
        if not self.counter:
            return self
        if "rate" not in self._kept:
            self._kept["rate"] = self._rate()
        found: Stream = self._kept["rate"]
        return found

    def _rate(self) -> Stream:
        import numpy as np

        there = np.isfinite(self.values)
        time_s, values = self.time_s[there], self.values[there]
        if len(values) < 2:
            empty = np.empty(0)
            reason = self.reason or "a rate needs two readings"
            return Stream(self.key, f"{self.unit}/s", empty, empty, False, reason)
        fresh = np.concatenate(([True], np.diff(values) != 0))
        fresh[-1] = True  # so that the time of a counter that stood still to the end counts
        steps_s, growth = np.diff(time_s[fresh]), np.diff(values[fresh])
        rate = np.where((steps_s > 0) & (growth >= 0), growth / np.maximum(steps_s, 1e-9), np.nan)
        return Stream(self.key, f"{self.unit}/s", time_s[fresh][1:], rate, False, self.reason)


def streams(
    start: Start, spans: Sequence[Span], values: Iterable[Value], columns: Iterable[Column]
) -> dict[str, Stream]:
    """Return the streams of a run by key: series, then reported values, then calls."""
    zero_ns = start.at.monotonic_ns
    found = {
        column.series: Stream(
            column.series,
            column.unit,
            (column.time_ns - zero_ns) / 1e9,
            column.values,
            column.counter,
            _reason(column),
        )
        for column in columns
    }
    reported: dict[str, list[Value]] = {}
    for value in values:
        if is_number(value):
            reported.setdefault(value.name, []).append(value)
    for name, items in reported.items():
        points = [((item.time_ns - zero_ns) / 1e9, float(item.data)) for item in items]
        steps = [item.step for item in items if item.step is not None]
        found[TOLD + name] = _stream(
            TOLD + name, items[0].unit, points, steps if len(steps) == len(items) else None
        )
    for name in dict.fromkeys(span.name for span in spans):
        calls = [
            ((span.start_ns - zero_ns) / 1e9, (span.end_ns - span.start_ns) / 1e6)
            for span in spans
            if span.name == name and span.end_ns is not None
        ]
        if calls:
            found[CALLS + name] = _stream(CALLS + name, "ms", calls)
    return found


def _reason(column: Column) -> str:
    """Return why values of a series are missing, ignoring the start-up time of means."""
    import numpy as np

    if not column.reasons:
        return ""
    there = np.isfinite(column.values)
    first = int(there.argmax()) if there.any() else len(there)
    is_all_since = first < len(there) and bool(there[first:].all())
    if is_all_since and column.time_ns[first] - column.time_ns[0] <= SETTLES_NS:
        return ""
    return column.reasons[-1][1]


def listed_streams(metrics: Mapping[str, float]) -> list[str]:
    """Return the keys that are known before samples are read; those of calls are not.

    Args:
        metrics: metrics of a `StoredRun`: "SERIES.NUMBER" of summaries, and reported values.
    """
    found: dict[str, None] = {}
    for name in metrics:
        series, _, number = name.rpartition(".")
        if number in NUMBERS and "." in series:
            found[series] = None
        elif "/" not in name:
            found[TOLD + name] = None
    return list(found)


def _stream(
    key: str, unit: str, points: list[tuple[float, float]], steps: list[int] | None = None
) -> Stream:
    import numpy as np

    table = np.array(points, dtype=np.float64)
    order = np.lexsort((table[:, 1], table[:, 0]))
    reported = None if steps is None else np.array(steps, dtype=np.float64)[order]
    return Stream(key, unit, table[order, 0], table[order, 1], steps=reported)


def is_number(value: Value) -> bool:
    """Return whether a value is a number, reported once or once per step."""
    data = value.data
    return value.kind == "metric" and isinstance(data, int | float) and math.isfinite(data)
