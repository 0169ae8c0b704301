"""Contents of a run in the store, and their copy in MLflow's metrics, params and tags."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dippm.runs.store.columns import Column, Summary, read_columns, summarise
from dippm.runs.store.folder import ARTIFACTS, RecordedRun, read_folder
from dippm.runs.store.query import (
    ABOUT,
    GROUP,
    LONGEST_PARAM,
    LONGEST_TAG,
    SUMMARY,
    mlflow_keys,
    mlflow_text,
    mlflow_texts,
)
from dippm.runs.store.record import End, Moment, Start, as_json

MOST_POINTS = 1000
"""Maximum number of points in the copy of a series: a page shows a few hundred, and MLflow takes
90 µs for each."""


@dataclass(frozen=True, slots=True)
class RunContents:
    """The complete data of a run.

    Attributes:
        recorded: contents of the run's folder.
        end: end of the run, with the status "lost" if it was not recorded.
        columns: raw series.
        summaries: one summary per series.
        remarks: descriptions of unreadable parts.
    """

    recorded: RecordedRun
    end: End
    columns: tuple[Column, ...]
    summaries: tuple[Summary, ...]
    remarks: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return everything but the samples as JSON-ready data."""
        return {
            "start": as_json(self.recorded.start),
            "end": as_json(self.end),
            "spans": [as_json(span) for span in self.recorded.spans],
            "values": [as_json(value) for value in self.recorded.values],
            "summaries": [asdict(summary) for summary in self.summaries],
            "remarks": list(self.remarks),
            "artifacts": self.artifacts(),
        }

    def artifacts(self) -> list[str]:
        """Return the run's artifacts as paths relative to the folder of artifacts."""
        held = self.recorded.path / ARTIFACTS
        return sorted(p.relative_to(held).as_posix() for p in held.rglob("*") if p.is_file())

    def wall_ms(self, time_ns: int) -> int:
        """Convert a monotonic time to wall-clock time, in milliseconds since 1970."""
        at = self.recorded.start.at
        return (time_ns - at.monotonic_ns + at.wall_ns) // 1_000_000


def gather(folder: Path) -> RunContents:
    """Read the folder of an ended run.

    Raises:
        RunError: if the folder holds no run.
    """
    recorded = read_folder(folder)
    columns, remarks = read_columns(recorded.samples)
    if recorded.damaged_lines:
        remarks.append(f"{recorded.damaged_lines} lines of events are damaged")
    end = recorded.end or _lost(recorded, columns)
    return RunContents(
        recorded, end, tuple(columns), tuple(summarise(c) for c in columns), tuple(remarks)
    )


def points(column: Column) -> Iterator[tuple[int, float]]:
    """Yield times in ns and values, at 1 Hz or less and about `MOST_POINTS` at most.

    A value is the mean of a gauge, or the last value of a counter, over its period.
    """
    import numpy as np

    there = np.isfinite(column.values)
    time_ns, values = column.time_ns[there], column.values[there]
    if not len(values):
        return
    whole_ns = int(time_ns[-1] - time_ns[0])
    period_ns = max(1_000_000_000, -(-whole_ns // MOST_POINTS))
    bucket = (time_ns - time_ns[0]) // period_ns
    starts = np.flatnonzero(np.concatenate(([True], np.diff(bucket) != 0)))
    sizes = np.diff(np.append(starts, len(values)))
    last = starts + sizes - 1
    copied = values[last] if column.counter else np.add.reduceat(values, starts) / sizes
    yield from zip(time_ns[last].tolist(), copied.tolist(), strict=True)


def _lost(recorded: RecordedRun, columns: list[Column]) -> End:
    """Return the end of a run without one: lost, at the time of its last event."""
    at = recorded.start.at
    heard = [
        at.monotonic_ns,
        *(int(column.time_ns[-1]) for column in columns if len(column.time_ns)),
        *(span.end_ns or span.start_ns for span in recorded.spans),
        *(value.time_ns for value in recorded.values),
    ]
    last = max(heard)
    moment = Moment(last, at.wall_ns + last - at.monotonic_ns)
    return End("lost", moment, error="its end was never written")


# Metrics, params and tags of a run in MLflow's own tables, for its page and its search.


class LoggedMetric(NamedTuple):
    """A value of a metric, as MLflow stores it.

    Attributes:
        key: name of the metric.
        value: value, which may be any float.
        timestamp: time in milliseconds since 1970.
        step: step at which the value was logged.
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
    named = mlflow_keys(column.series for column in gathered.columns)
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
    names = mlflow_keys(dict.fromkeys(value.name for value in logged))
    counts: dict[str, int] = {}
    for item in logged:
        count = counts[item.name] = counts.get(item.name, -1) + 1
        at_step = count if item.step is None else item.step
        found.append(
            LoggedMetric(names[item.name], item.data, gathered.wall_ms(item.time_ns), at_step)
        )
    return found


def logged_params(start: Start) -> dict[str, str]:
    """Return the parameters of a run as MLflow's params."""
    return mlflow_texts(start.params, LONGEST_PARAM)


def logged_tags(gathered: RunContents) -> dict[str, str]:
    """Return MLflow's tags: those of the run, its environment, and the fields shown in lists."""
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
        **mlflow_texts(start.tags, LONGEST_TAG),
        **mlflow_texts({f"environment/{k}": v for k, v in start.environment.items()}, LONGEST_TAG),
        **mlflow_texts({f"absent/{name}": reason for name, reason in absent.items()}, LONGEST_TAG),
        "mlflow.note.content": mlflow_text(start.description, LONGEST_TAG),
        ABOUT: json.dumps(shown),
    }
    if start.group:
        tags[GROUP] = mlflow_text(start.group, LONGEST_TAG)
    return tags


def _is_number(data: Any) -> bool:
    return isinstance(data, int | float) and abs(data) < 1e308 and math.isfinite(data)
