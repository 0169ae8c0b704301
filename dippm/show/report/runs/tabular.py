"""Charts as CSV and JSON: all values, with reasons for absent ones."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from dippm.base.printable import csv_table
from dippm.show.report.runs.charts import Bars, Chart, DrawnCharts, Heat, Line, Lines, Parallel

HEADER = (
    *("chart", "type", "run", "name", "x", "value", "low", "high", "n"),
    *("unit", "uuid", "absent"),
)
"""Columns of the CSV; "uuid" of a mean lists all its runs, separated by blanks."""


def csv_text(drawn: DrawnCharts) -> str:
    """Return one table of all charts: a row per point, bar, matrix cell or setting."""
    rows = [
        (type(chart).__name__.lower(), chart.title, *row, getattr(chart, "unit", ""), uuids, "")
        for chart in drawn.charts
        for row, uuids in _rows(chart)
    ]
    absent = [("", type_, run, *[""] * 8, why) for run, type_, why in drawn.absent]
    return csv_table(HEADER, [*rows, *absent])


def document(drawn: DrawnCharts) -> dict[str, Any]:
    """Return the charts as one JSON document, with null for absent values."""
    return {
        "charts": [
            {"kind": type(chart).__name__.lower(), **_plain(_fields(chart))}
            for chart in drawn.charts
        ],
        "absent": [dict(zip(("run", "type", "reason"), row, strict=True)) for row in drawn.absent],
    }


def _rows(chart: Chart) -> list[tuple[tuple[Any, ...], str]]:
    """Return ((run, name, x, value, low, high, n), uuids of its runs) per row."""
    if isinstance(chart, Lines):
        return [(row, " ".join(line.uuids)) for line in chart.lines for row in _points(line)] + [
            ((o.run, o.name, "", o.value, _or_blank(o.low), _or_blank(o.high), ""), "")
            for o in chart.levels
        ]
    return [(row, "") for row in _cells(chart)]


def _cells(chart: Bars | Heat | Parallel) -> list[tuple[Any, ...]]:
    if isinstance(chart, Bars):
        return [(b.run, b.name, "", b.mean, b.low, b.high, b.n) for b in chart.bars]
    if isinstance(chart, Heat):
        return [
            (chart.run, _label(chart, row), _label(chart, column), number, "", "", "")
            for row, numbers in enumerate(chart.matrix)
            for column, number in enumerate(numbers)
        ]
    return [
        (run, axis, place, "" if value is None else value, "", "", "")
        for place, (run, row) in enumerate(chart.rows)
        for axis, value in zip(chart.axes, row, strict=True)
    ]


def _points(line: Line) -> list[tuple[Any, ...]]:
    points = list(zip(line.x.tolist(), line.y.tolist(), strict=True))
    if line.low is None:
        return [(line.run, line.name, x, y, "", "", "") for x, y in points]
    ranges = zip(points, line.low.tolist(), line.high.tolist(), strict=True)
    return [(line.run, line.name, x, y, low, high, line.n) for (x, y), low, high in ranges]


def _or_blank(number: float | None) -> float | str:
    return "" if number is None else number


def _label(chart: Heat, place: int) -> str:
    return chart.labels[place] if place < len(chart.labels) else str(place)


def _fields(chart: Chart) -> dict[str, Any]:
    if isinstance(chart, Parallel):
        return {
            "title": chart.title,
            "axes": chart.axes,
            "rows": [{"run": run, "values": row} for run, row in chart.rows],
        }
    if isinstance(chart, Lines):
        return {
            "title": chart.title,
            "x_label": chart.x_label,
            "y_label": chart.y_label,
            "unit": chart.unit,
            "lines": [_line(line) for line in chart.lines],
            **({"levels": [asdict(level) for level in chart.levels]} if chart.levels else {}),
            **({"stretches": [asdict(o) for o in chart.stretches]} if chart.stretches else {}),
        }
    return asdict(chart)


def _line(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {"run": line.run, "name": line.name, "uuids": list(line.uuids)}
    found |= {"x": line.x.tolist(), "y": line.y.tolist()}
    if line.low is not None:
        found |= {"low": line.low.tolist(), "high": line.high.tolist(), "n": line.n}
    return found


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item
