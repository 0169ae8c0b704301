"""`draw`: makes charts of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from dippm.measure.readings import Absent as NoValue
from dippm.runs.store.record import Value
from dippm.runs.store.stored_run import StoredRun
from dippm.show.report.runs.catalogue import Entry
from dippm.show.report.runs.charts import (
    Bars,
    Chart,
    DrawnCharts,
    Heat,
    Line,
    Lines,
    Parallel,
    RunBar,
)
from dippm.umlaut.rows import call_values

Absent = list[tuple[str, str, str]]


def draw(runs: Sequence[StoredRun], entries: Iterable[Entry]) -> DrawnCharts:
    """Return a chart per type with all runs overlaid; each matrix has a chart of its own."""
    labelled = list(zip(labels(runs), runs, strict=True))
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.type, entry.shape), []).append(entry.description)
    charts: list[Chart] = []
    absent: Absent = []
    for (type_, shape), described in groups.items():
        charts += MAKERS[shape](labelled, type_, described, absent)
    return DrawnCharts(tuple(charts), tuple(absent))


def labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return a label per run: its name, with the start of its uuid if the name is not unique."""
    names = [run.name or run.uuid[:8] for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} {run.uuid[:8]}"
        for name, run in zip(names, runs, strict=True)
    ]


Labelled = list[tuple[str, StoredRun]]


def _series(runs: Labelled, type_: str, _: list[str], absent: Absent) -> list[Chart]:
    import numpy as np

    lines, unit = [], ""
    for label, run in runs:
        column = next((column for column in run.columns if column.series == type_), None)
        if column is None or not np.isfinite(column.values).any():
            summary = run.summaries.get(type_)
            absent.append((label, type_, summary.reason if summary else "it was not sampled"))
            continue
        unit = column.unit
        elapsed_s = (column.time_ns - run.start.at.monotonic_ns) / 1e9
        lines.append(Line(label, label, elapsed_s, column.values, uuids=(run.uuid,)))
        absent += [(label, type_, reason) for reason in dict(column.reasons[::-1]).values()]
    if not lines:
        return []
    return [Lines(type_, "elapsed time (s)", f"{type_} ({unit})", tuple(lines), unit=unit)]


def _calls(runs: Labelled, type_: str, described: list[str], absent: Absent) -> list[Chart]:
    bars = []
    for label, run in runs:
        for name, measured in call_values(run, described, type_).items():
            values = [value for value in measured if not isinstance(value, NoValue)]
            reasons = {value.reason for value in measured if isinstance(value, NoValue)}
            absent += [(label, f"{type_} of {name}", reason) for reason in sorted(reasons)]
            if values:
                mean = sum(values) / len(values)
                bars.append(RunBar(label, name, mean, min(values), max(values), len(values)))
            elif not reasons:
                absent.append((label, f"{type_} of {name}", "there was no such call"))
    return [Bars(type_, type_, tuple(bars))] if bars else []


def _epochs(runs: Labelled, type_: str, described: list[str], absent: Absent) -> list[Chart]:
    lines: list[Line] = []
    unit, timed = "", False
    for label, run in runs:
        for name in described:
            values = _values_of(run, type_, name)
            if not values:
                absent.append((label, type_, "it was not told"))
                continue
            unit, timed = values[0].unit or unit, values[0].kind == "timed_time_to_accuracy"
            of_run = _lines_of(values, label, name if len(described) > 1 else "")
            lines += [replace(line, uuids=(run.uuid,)) for line in of_run]
    if not lines:
        return []
    x_label = "elapsed time (s)" if timed else "epoch or step"
    y_label = "accuracy" if timed else f"{type_} ({unit})" if unit and unit != type_ else type_
    return [Lines(type_, x_label, y_label, tuple(lines), unit="" if timed else unit)]


def _lines_of(values: list[Value], label: str, name: str) -> list[Line]:
    """Return lines of the values reported under one name: numbers one by one, or whole lists."""
    import numpy as np

    named = f"{label} {name}".strip()
    lists = [value for value in values if isinstance(value.data, list)]
    found = []
    for number, value in enumerate(lists, 1):
        numbers = np.array([_number(item) for item in value.data], dtype=float)
        own = f"{named} ({number})" if len(lists) > 1 else named
        found.append(Line(label, own, np.arange(1.0, len(numbers) + 1), numbers))
    points = sorted(_point(v, place) for place, v in enumerate(values) if v not in lists)
    if points:
        xs, ys = zip(*points, strict=True)
        found.append(Line(label, named, np.array(xs, dtype=float), np.array(ys, dtype=float)))
    return found


def _point(value: Value, place: int) -> tuple[float, float]:
    if isinstance(value.data, dict):
        seconds = value.data.get("seconds", value.data.get("time_s"))
        return _number(seconds), _number(value.data.get("accuracy", value.data.get("target")))
    return float(place if value.step is None else value.step), _number(value.data)


def _matrices(runs: Labelled, type_: str, described: list[str], absent: Absent) -> list[Chart]:
    found: list[Chart] = []
    for label, run in runs:
        for name in described:
            values = _values_of(run, type_, name)
            if not values:
                absent.append((label, f"{type_} {name}", "it was not told"))
            for value in values:
                rows = tuple(tuple(_number(n) for n in row) for row in value.data["matrix"])
                given = value.data.get("labels") or range(len(rows))
                words = tuple(str(word) for word in given)
                found.append(Heat(f"{name} · {label}", label, words, rows))
    return found


def _settings(runs: Labelled, type_: str, described: list[str], absent: Absent) -> list[Chart]:
    found: list[Chart] = []
    for name in described:
        rows: list[tuple[str, dict[str, Any]]] = []
        for label, run in runs:
            values = _values_of(run, type_, name)
            if not values:
                absent.append((label, f"{type_} {name}", "it was not told"))
            rows += [(label, row) for value in values for row in _rows(value.data)]
        axes = tuple(dict.fromkeys(axis for _, row in rows for axis in row))
        if rows:
            table = tuple((label, tuple(_cell(row.get(a)) for a in axes)) for label, row in rows)
            found.append(Parallel(name, axes, table))
    return found


MAKERS: dict[str, Callable[[Labelled, str, list[str], Absent], list[Chart]]] = {
    "lines": _series,
    "bars": _calls,
    "epochs": _epochs,
    "heat": _matrices,
    "parallel": _settings,
}


def _values_of(run: StoredRun, type_: str, name: str) -> list[Value]:
    return [
        value
        for value in run.values
        if (value.kind, value.name) == (type_, name)
        or (value.kind == "metric" and (value.name, value.description) == (type_, name))
    ]


def _rows(data: Any) -> list[dict[str, Any]]:
    """Return sets of settings: a list of objects, an object, or columns."""
    if isinstance(data, dict) and isinstance(data.get("columns"), dict):
        columns = data["columns"]
        longest = max((len(column) for column in columns.values()), default=0)
        return [
            {name: column[row] for name, column in columns.items() if row < len(column)}
            for row in range(longest)
        ]
    return data if isinstance(data, list) else [data]


def _number(item: Any) -> float:
    try:
        return float(item)
    except (TypeError, ValueError):
        return float("nan")


def _cell(item: Any) -> float | str | None:
    if item is None or isinstance(item, bool):
        return None if item is None else str(item)
    return float(item) if isinstance(item, int | float) else str(item)
