"""`named_series`: the series of a run with radT's names and units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dippm.errors import ListenerError
from dippm.runs.store.columns import Column
from dippm.runs.tracking.listeners.table import LISTENERS, ListenerMetric

TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ListenerSeries:
    """One series with radT's name.

    Attributes:
        name: radT's name, for instance "SMI - Power Draw"; with several devices "... [1]".
        origin: full name of the series that it is derived from: "gpm.sm_active_percent".
        unit: unit of the values.
        scope: what is measured: "tree", "host", "device" or "slice".
        time_ns: monotonic time of each reading, int64, [n].
        values: float64, [n]; NaN where absent, never 0 or -1.
        reason: reason for missing values, "" if there are none.
    """

    name: str
    origin: str
    unit: str
    scope: str
    time_ns: Any
    values: Any
    reason: str = ""


def named_series(
    columns: Iterable[Column], listeners: Iterable[str] = ()
) -> tuple[ListenerSeries, ...]:
    """Return the series that radT's listeners would have recorded of a run.

    Args:
        columns: series of the run, `StoredRun.columns`.
        listeners: radT's names; by default all that the run has series for.

    Raises:
        ListenerError: if the run has no series of a named listener.
    """
    wanted = tuple(listeners)
    held = tuple(columns)
    found: list[ListenerSeries] = []
    for listener in wanted or LISTENERS:
        if listener not in LISTENERS:
            raise ListenerError(
                f"there is no listener {listener!r}", f"There are: {', '.join(LISTENERS)}."
            )
        of_it = [
            one for metric in LISTENERS[listener].metrics for one in _find_series(metric, held)
        ]
        if wanted and not of_it:
            raise ListenerError(
                f"the run has no series of the listener {listener}",
                f'Ask for it when it runs: metrics=("{listener}",).',
            )
        found += of_it
    return tuple(found)


def _find_series(metric: ListenerMetric, columns: tuple[Column, ...]) -> Iterator[ListenerSeries]:
    done: set[tuple[str, str]] = set()
    for series in metric.series:
        pattern = re.compile(re.escape(series).replace(r"\*", "(.+)"))
        for column in columns:
            source, _, quantity = column.series.partition(".")
            source, _, device = source.partition(":")
            match = pattern.fullmatch(f"{source}.{quantity}")
            part = match[1] if match and "*" in series else ""
            if match is None or part == TOTAL or (part, device) in done:
                continue
            done.add((part, device))
            name = metric.name.replace("{}", part) + (f" [{device}]" if device else "")
            yield _to_series(name, metric, column, columns)


def _to_series(
    name: str, metric: ListenerMetric, column: Column, columns: tuple[Column, ...]
) -> ListenerSeries:
    import numpy as np

    time_ns, values = column.time_ns, column.values / metric.per
    reason = column.reasons[-1][1] if column.reasons and np.isnan(column.values).any() else ""
    if metric.how == "growth":
        there = values[np.isfinite(values)]
        values = values - there[0] if len(there) else values
    elif metric.how == "rate":
        time_ns, values = _rate(time_ns, values)
    elif metric.part_of:
        whole = next((c for c in columns if c.series == metric.part_of), None)
        if whole is None:
            values, reason = np.full(len(values), np.nan), f"{metric.part_of} was not sampled"
        else:
            there = whole.values[np.isfinite(whole.values)]
            values = 100 * values / (there[-1] if len(there) else np.nan)
            reason = reason if len(there) else f"{metric.part_of} has no value"
    return ListenerSeries(name, column.series, metric.unit, column.scope, time_ns, values, reason)


def _rate(time_ns: Any, values: Any) -> tuple[Any, Any]:
    """Return the growth per second between distinct readings, at the later of the two.

    Repeated readings are skipped: counters are updated less often than they are read. A counter
    that stands still to the end has the rate 0 there.
    """
    import numpy as np

    there = np.isfinite(values)
    time_ns, values = time_ns[there], values[there]
    if len(values) < 2:
        return time_ns[:0], values[:0]
    fresh = np.concatenate(([True], np.diff(values) != 0))
    fresh[-1] = True
    time_ns, values = time_ns[fresh], values[fresh]
    return time_ns[1:], np.diff(values) / (np.diff(time_ns) / 1e9)
