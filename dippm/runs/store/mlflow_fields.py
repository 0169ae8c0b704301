"""The metrics, params and tags of a run in MLflow's own tables, for its page and its search."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from dippm.runs.store.names import LONGEST_PARAM, LONGEST_TAG, keys, text, texts
from dippm.runs.store.query import ABOUT, GROUP, SUMMARY
from dippm.runs.store.record import Start
from dippm.runs.store.run_contents import RunContents, points


class LoggedMetric(NamedTuple):
    """A number, as MLflow stores it.

    Attributes:
        key: name of the metric.
        value: any float.
        timestamp: milliseconds since 1970.
        step: step of the metric.
    """

    key: str
    value: float
    timestamp: int
    step: int


def logged_metrics(gathered: RunContents) -> list[LoggedMetric]:
    """Return all numbers of a run as metrics.

    Summaries are named "summary/SERIES/NUMBER", copies of series "system/SERIES"; logged metrics
    keep their names.
    """
    start = gathered.recorded.start.at.monotonic_ns
    end_ms = gathered.end.at.wall_ns // 1_000_000
    named = keys(column.series for column in gathered.columns)
    found = [
        LoggedMetric(f"{SUMMARY}{named[summary.series]}/{number}", value, end_ms, 0)
        for summary in gathered.summaries
        for number, value in summary.numbers().items()
    ]
    for column in gathered.columns:
        for time_ns, value in points(column):
            step = max(0, (time_ns - start) // 1_000_000_000)
            name = f"system/{named[column.series]}"
            found.append(LoggedMetric(name, value, gathered.wall_ms(time_ns), step))
    logged = [v for v in gathered.recorded.values if v.kind == "metric" and _is_number(v.data)]
    names = keys(dict.fromkeys(value.name for value in logged))
    counts: dict[str, int] = {}
    for item in logged:
        count = counts[item.name] = counts.get(item.name, -1) + 1
        at_step = count if item.step is None else item.step
        found.append(
            LoggedMetric(names[item.name], item.data, gathered.wall_ms(item.time_ns), at_step)
        )
    return found


def logged_params(start: Start) -> dict[str, str]:
    """Return the params."""
    return texts(start.params, LONGEST_PARAM)


def logged_tags(gathered: RunContents) -> dict[str, str]:
    """Return tags, environment and the fields shown in lists."""
    start = gathered.recorded.start
    absent = {s.series: s.reason for s in gathered.summaries if not s.n}
    shown = {
        "uuid": start.uuid,
        "name": start.name[:500],
        "experiment": start.experiment[:500],
        "status": gathered.end.status,
        "wall_ns": start.at.wall_ns,
        "seconds": (gathered.end.at.monotonic_ns - start.at.monotonic_ns) / 1e9,
        "description": start.description[:500],
    }
    tags = {
        **texts(start.tags, LONGEST_TAG),
        **texts({f"environment/{k}": v for k, v in start.environment.items()}, LONGEST_TAG),
        **texts({f"absent/{name}": reason for name, reason in absent.items()}, LONGEST_TAG),
        "mlflow.note.content": text(start.description, LONGEST_TAG),
        ABOUT: json.dumps(shown),
    }
    if start.group:
        tags[GROUP] = text(start.group, LONGEST_TAG)
    return tags


def _is_number(data: Any) -> bool:
    return isinstance(data, int | float) and abs(data) < 1e308 and math.isfinite(data)
