"""What of a run is drawn over time: sampled series, numbers that it told, and how long calls took.

A stream has a key that names it in menus, in addresses and in explorations:

    tree.rss_mb         a sampled series
    told: loss          a number that the run told
    calls: forward      how long each span of this name took, in ms
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.runs.store.columns import Column
from dippm.runs.store.record import Span, Start, Value
from dippm.runs.store.summary import NUMBERS
from dippm.show.report.runs.thinning import extremes

TOLD, CALLS = "told: ", "calls: "
MOST_OF_A_LINE = 4000
"""Points of a line that is drawn whole."""
SETTLES_NS = 1_000_000_000
""""tree.cpu_percent" has its first value after so long at most."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Something over time.

    Attributes:
        key: see above.
        unit: of the values, "" for none.
        time_s: since the run started, float64, [n], rising.
        values: float64, [n]; NaN where there is none.
        counter: whether it only grows.
        reason: why values are missing, "" if none is.
        steps: of a training, that the run told with each value, float64, [n]; None if it told none.
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
        """Return time and values, thinned to what a screen can show; found once, and kept."""
        if len(self.values) <= MOST_OF_A_LINE:
            return self.time_s, self.values
        if "thinned" not in self._kept:
            rows = extremes(self.values, MOST_OF_A_LINE)
            self._kept["thinned"] = self.time_s[rows], self.values[rows]
        found: tuple[Any, Any] = self._kept["thinned"]
        return found

    def rate(self) -> Stream:
        """Return how fast a counter grew, between readings that differ; any other as it is."""
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
        fresh[-1] = True  # a counter that stood still to the end took that time as well
        steps_s, growth = np.diff(time_s[fresh]), np.diff(values[fresh])
        rate = np.where((steps_s > 0) & (growth >= 0), growth / np.maximum(steps_s, 1e-9), np.nan)
        return Stream(self.key, f"{self.unit}/s", time_s[fresh][1:], rate, False, self.reason)


def streams(
    start: Start, spans: Sequence[Span], values: Iterable[Value], columns: Iterable[Column]
) -> dict[str, Stream]:
    """Return the streams of a run by key: series first, then what it told, then calls."""
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
    told: dict[str, list[Value]] = {}
    for value in values:
        if is_number(value):
            told.setdefault(value.name, []).append(value)
    for name, items in told.items():
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
    """Return why values of a series are missing; a mean that needs half a second is not said."""
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
    """Return the keys that a list of runs knows before samples are read; calls are not among them.

    Args:
        metrics: of a `StoredRun`: "SERIES.NUMBER" of summaries, and what the run told.
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
    told = None if steps is None else np.array(steps, dtype=np.float64)[order]
    return Stream(key, unit, table[order, 0], table[order, 1], steps=told)


def is_number(value: Value) -> bool:
    """Return whether a run told one number, or one each step."""
    data = value.data
    return value.kind == "metric" and isinstance(data, int | float) and math.isfinite(data)
