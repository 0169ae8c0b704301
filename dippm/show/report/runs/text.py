"""Text forms of charts: drawings for a terminal or a log, a CSV table, and a JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import csv_table, printable
from dippm.show.report.runs.charts import Bars, Chart, DrawnCharts, Heat, Line, Lines, Parallel

# Drawings as text.


WIDTH, BAR = 60, 40
"""Characters of a sparkline and of the longest bar."""
LEVELS = "▁▂▃▄▅▆▇█"


def plain_text(drawn: DrawnCharts) -> str:
    """Return all charts as printable text."""
    parts = [f"{printable(chart.title)}\n{_draw_text(chart)}" for chart in drawn.charts]
    if drawn.absent:
        rows = [f"  {printable(f'{t} of {run}: {why}')}" for run, t, why in drawn.absent]
        parts.append("absent\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _draw_text(chart: Chart) -> str:
    if isinstance(chart, Lines):
        return _draw_lines(chart)
    if isinstance(chart, Bars):
        return _draw_bars(chart)
    if isinstance(chart, Heat):
        return _draw_heat_map(chart)
    return _draw_parallel(chart)


def _draw_lines(chart: Lines) -> str:
    import numpy as np

    every = np.concatenate([line.y[np.isfinite(line.y)] for line in chart.lines])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    ends = [float(end) for line in chart.lines for end in (line.x[:1].sum(), line.x[-1:].sum())]
    first, last = min(ends), max(ends)
    size = max(len(printable(line.name)) for line in chart.lines)
    rows = [
        f"  {printable(line.name):<{size}} {_sparkline(line, first, last, low, high)}"
        for line in chart.lines
    ]
    about = (
        f"  {printable(chart.y_label)}: {show(low)} to {show(high)}; "
        f"{chart.x_label}: {show(first)} to {show(last)}"
    )
    return "\n".join([*rows, about])


def _sparkline(line: Line, first: float, last: float, low: float, high: float) -> str:
    """Return a sparkline: the mean of each bin as a block of eight heights, or a blank."""
    import numpy as np

    there = np.isfinite(line.y)
    span = (last - first) or 1.0
    places = ((line.x[there] - first) / span * (WIDTH - 1)).astype(int)
    sums = np.bincount(places, line.y[there], WIDTH)
    counts = np.bincount(places, minlength=WIDTH)
    scale = (high - low) or 1.0
    return "".join(
        LEVELS[round(float((total / count - low) / scale) * (len(LEVELS) - 1))] if count else " "
        for total, count in zip(sums, counts, strict=True)
    )


def _draw_bars(chart: Bars) -> str:
    most = max(abs(bar.mean) for bar in chart.bars) or 1.0
    names = [printable(f"{bar.name} · {bar.run}") for bar in chart.bars]
    size = max(map(len, names))
    return "\n".join(
        f"  {name:<{size}} {'█' * max(1, round(abs(bar.mean) / most * BAR)):<{BAR}} "
        f"{show(bar.mean)} ({show(bar.low)} – {show(bar.high)}, n = {bar.n})"
        for name, bar in zip(names, chart.bars, strict=True)
    )


def _draw_heat_map(chart: Heat) -> str:
    head = ["", *chart.labels]
    rows = [
        [chart.labels[place] if place < len(chart.labels) else str(place), *map(_number_text, row)]
        for place, row in enumerate(chart.matrix)
    ]
    return _align_columns([head, *rows])


def _draw_parallel(chart: Parallel) -> str:
    rows = [
        [run, *("–" if cell is None else _number_text(cell) for cell in row)]
        for run, row in chart.rows
    ]
    return _align_columns([["run", *chart.axes], *rows])


def _align_columns(rows: list[list[str]]) -> str:
    cells = [[printable(cell) for cell in row] for row in rows]
    count = max(map(len, cells))
    cells = [row + [""] * (count - len(row)) for row in cells]
    sizes = [max(len(row[place]) for row in cells) for place in range(count)]
    return "\n".join(
        "  " + "  ".join(f"{cell:>{size}}" for cell, size in zip(row, sizes, strict=True)).rstrip()
        for row in cells
    )


def _number_text(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:g}"


# All values of the charts, as CSV and JSON.


HEADER = (
    *("chart", "type", "run", "name", "x", "value", "low", "high", "n"),
    *("unit", "uuid", "absent"),
)
"""Columns of the CSV; for a mean, "uuid" lists all of its runs, separated by blanks."""


def csv_text(drawn: DrawnCharts) -> str:
    """Return one table of all charts: a row per point, bar, matrix cell or setting."""
    rows = [
        (type(chart).__name__.lower(), chart.title, *row, getattr(chart, "unit", ""), uuids, "")
        for chart in drawn.charts
        for row, uuids in _csv_rows(chart)
    ]
    absent = [("", type_, run, *[""] * 8, why) for run, type_, why in drawn.absent]
    return csv_table(HEADER, [*rows, *absent])


def document(drawn: DrawnCharts) -> dict[str, Any]:
    """Return the charts as one JSON document, with null for absent values."""
    return {
        "charts": [
            {"kind": type(chart).__name__.lower(), **_json_ready(_chart_document(chart))}
            for chart in drawn.charts
        ],
        "absent": [dict(zip(("run", "type", "reason"), row, strict=True)) for row in drawn.absent],
    }


def _csv_rows(chart: Chart) -> list[tuple[tuple[Any, ...], str]]:
    """Return the rows of a chart, each with the UUIDs of its runs.

    The columns are run, name, x, value, low, high and n.
    """
    if isinstance(chart, Lines):
        return [
            (row, " ".join(line.uuids)) for line in chart.lines for row in _csv_points(line)
        ] + [
            ((o.run, o.name, "", o.value, _or_blank(o.low), _or_blank(o.high), ""), "")
            for o in chart.levels
        ]
    return [(row, "") for row in _csv_cells(chart)]


def _csv_cells(chart: Bars | Heat | Parallel) -> list[tuple[Any, ...]]:
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


def _csv_points(line: Line) -> list[tuple[Any, ...]]:
    points = list(zip(line.x.tolist(), line.y.tolist(), strict=True))
    if line.low is None:
        return [(line.run, line.name, x, y, "", "", "") for x, y in points]
    ranges = zip(points, line.low.tolist(), line.high.tolist(), strict=True)
    return [(line.run, line.name, x, y, low, high, line.n) for (x, y), low, high in ranges]


def _or_blank(number: float | None) -> float | str:
    return "" if number is None else number


def _label(chart: Heat, place: int) -> str:
    return chart.labels[place] if place < len(chart.labels) else str(place)


def _chart_document(chart: Chart) -> dict[str, Any]:
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
            "lines": [_line_document(line) for line in chart.lines],
            **({"levels": [asdict(level) for level in chart.levels]} if chart.levels else {}),
            **({"stretches": [asdict(o) for o in chart.stretches]} if chart.stretches else {}),
        }
    return asdict(chart)


def _line_document(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {"run": line.run, "name": line.name, "uuids": list(line.uuids)}
    found |= {"x": line.x.tolist(), "y": line.y.tolist()}
    if line.low is not None:
        found |= {"low": line.low.tolist(), "high": line.high.tolist(), "n": line.n}
    return found


def _json_ready(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _json_ready(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_json_ready(value) for value in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item
