"""Charts as text, for a terminal or a log."""

from __future__ import annotations

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.show.report.runs.charts import Bars, Chart, DrawnCharts, Heat, Line, Lines, Parallel

WIDTH, BAR = 60, 40
LEVELS = "▁▂▃▄▅▆▇█"


def plain_text(drawn: DrawnCharts) -> str:
    """Return all charts as printable text."""
    parts = [f"{printable(chart.title)}\n{_text(chart)}" for chart in drawn.charts]
    if drawn.absent:
        rows = [f"  {printable(f'{t} of {run}: {why}')}" for run, t, why in drawn.absent]
        parts.append("absent\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _text(chart: Chart) -> str:
    if isinstance(chart, Lines):
        return _lines(chart)
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Heat):
        return _heat(chart)
    return _parallel(chart)


def _lines(chart: Lines) -> str:
    import numpy as np

    every = np.concatenate([line.y[np.isfinite(line.y)] for line in chart.lines])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    ends = [float(end) for line in chart.lines for end in (line.x[:1].sum(), line.x[-1:].sum())]
    first, last = min(ends), max(ends)
    size = max(len(printable(line.name)) for line in chart.lines)
    rows = [
        f"  {printable(line.name):<{size}} {_spark(line, first, last, low, high)}"
        for line in chart.lines
    ]
    about = (
        f"  {printable(chart.y_label)}: {show(low)} to {show(high)}; "
        f"{chart.x_label}: {show(first)} to {show(last)}"
    )
    return "\n".join([*rows, about])


def _spark(line: Line, first: float, last: float, low: float, high: float) -> str:
    """Return a sparkline: means of bins as blocks of eight heights, blank without a value."""
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


def _bars(chart: Bars) -> str:
    most = max(abs(bar.mean) for bar in chart.bars) or 1.0
    names = [printable(f"{bar.name} · {bar.run}") for bar in chart.bars]
    size = max(map(len, names))
    return "\n".join(
        f"  {name:<{size}} {'█' * max(1, round(abs(bar.mean) / most * BAR)):<{BAR}} "
        f"{show(bar.mean)} ({show(bar.low)} – {show(bar.high)}, n = {bar.n})"
        for name, bar in zip(names, chart.bars, strict=True)
    )


def _heat(chart: Heat) -> str:
    head = ["", *chart.labels]
    rows = [
        [chart.labels[place] if place < len(chart.labels) else str(place), *map(_figure, row)]
        for place, row in enumerate(chart.matrix)
    ]
    return _grid([head, *rows])


def _parallel(chart: Parallel) -> str:
    rows = [
        [run, *("–" if cell is None else _figure(cell) for cell in row)] for run, row in chart.rows
    ]
    return _grid([["run", *chart.axes], *rows])


def _grid(rows: list[list[str]]) -> str:
    cells = [[printable(cell) for cell in row] for row in rows]
    count = max(map(len, cells))
    cells = [row + [""] * (count - len(row)) for row in cells]
    sizes = [max(len(row[place]) for row in cells) for place in range(count)]
    return "\n".join(
        "  " + "  ".join(f"{cell:>{size}}" for cell, size in zip(row, sizes, strict=True)).rstrip()
        for row in cells
    )


def _figure(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:g}"
