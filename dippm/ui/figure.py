"""`figure_of`: a chart as plotly's JSON, built without plotly, which would check it for seconds."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from dippm.figures import show
from dippm.report.plotted import safe
from dippm.report.runs.charts import Level, Line, Stretch
from dippm.ui.exploration import ChartView
from dippm.ui.view import View

MOST_TRACES = 40
"""Lines that are traces of their own; plotly takes a millisecond for each, so more are joined."""
MOST_MARKED = 60
DASHES = ("solid", "dash", "dot", "dashdot")


class Scheme(NamedTuple):
    """Colours that can be read on one background."""

    background: str
    text: str
    grid: str
    lines: tuple[str, ...]


SCHEMES = {
    "light": Scheme(
        "#ffffff",
        "#1c2430",
        "#dfe4ea",
        ("#0b62b5", "#b8470b", "#1b7f3b", "#8b2fa8", "#a3152c", "#0f7c85", "#7a5c00", "#55606e",
         "#c2185b", "#3d4fc4"),
    ),
    "dark": Scheme(
        "#161b22",
        "#e6edf3",
        "#30363d",
        ("#62b0ff", "#ff9a5c", "#63d384", "#d79bf0", "#ff8593", "#4fd0d9", "#e3c04d", "#b3bcc7",
         "#ff8fbf", "#a5b0ff"),
    ),
}  # fmt: skip


def figure_of(view: View, wanted: ChartView, scheme: str) -> dict[str, Any]:
    """Return a figure.

    Args:
        view: what is drawn.
        wanted: what is seen of its axes, and whether y is logarithmic.
        scheme: "light" or "dark".
    """
    looks = SCHEMES.get(scheme, SCHEMES["light"])
    factor = 1000.0 if view.clock else 1.0  # plotly's dates are milliseconds
    pairs = list(zip(view.chart.lines, view.colours, strict=True))
    traces = (
        [part for line, place in pairs for part in _traces(line, place, looks, factor)]
        if len(pairs) <= MOST_TRACES
        else _joined(pairs, looks, factor)
    )
    shapes, notes = _levels(view.chart.levels, looks, log=wanted.log)
    shapes += _stretches(view.chart.stretches, looks, factor)
    axis = {"gridcolor": looks.grid, "zerolinecolor": looks.grid, "linecolor": looks.grid}
    layout = {
        "uirevision": "kept",
        "paper_bgcolor": looks.background,
        "plot_bgcolor": looks.background,
        "font": {"color": looks.text, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        "autosize": True,
        "shapes": shapes,
        "annotations": notes,
        "xaxis": {
            **axis,
            "title": {"text": safe(view.chart.x_label), "standoff": 8},
            "type": "date" if view.clock else "linear",
            **_seen(wanted.x, factor),
        },
        "yaxis": {
            **axis,
            "title": {"text": safe(view.chart.y_label), "standoff": 8},
            "type": "log" if wanted.log else "linear",
            "exponentformat": "power",
            **_seen(wanted.y),
        },
    }
    return {"data": traces, "layout": layout}


def _seen(range_: tuple[float, float] | None, factor: float = 1.0) -> dict[str, Any]:
    if range_ is None:
        return {"autorange": True}
    return {"autorange": False, "range": [range_[0] * factor, range_[1] * factor]}


def _traces(line: Line, place: int, looks: Scheme, factor: float) -> list[dict[str, Any]]:
    drawn = looks.lines[place % len(looks.lines)]
    x, name = _array(line.x * factor), safe(line.name)
    shared = {"type": "scatter", "x": x, "name": name}
    hover = f"%{{y}}<extra>{name}"
    parts = []
    if line.low is not None:
        edge = {**shared, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        fill = {"fill": "tonexty", "fillcolor": _faint(drawn)}
        parts = [{**edge, "y": _array(line.low)}, {**edge, "y": _array(line.high), **fill}]
        hover += f" · mean of {line.n}"
    marked = len(line.x) <= MOST_MARKED
    style = DASHES[place // len(looks.lines) % len(DASHES)]
    main = {
        **shared,
        "y": _array(line.y),
        "mode": "lines+markers" if marked else "lines",
        "line": {"color": drawn, "width": 1.6, "dash": style},
        "marker": {"size": 4},
        "hovertemplate": f"{hover}</extra>",
    }
    return [*parts, main]


def _joined(
    pairs: Sequence[tuple[Line, int]], looks: Scheme, factor: float
) -> list[dict[str, Any]]:
    """Return a trace per colour, its lines apart by a gap; what a point is of, its text says."""
    import numpy as np

    traces = []
    for number, drawn in enumerate(looks.lines):
        mine = [line for line, place in pairs if place % len(looks.lines) == number]
        if not mine:
            continue
        gap = np.full(1, np.nan)
        x = np.concatenate([part for line in mine for part in (line.x, gap)])
        y = np.concatenate([part for line in mine for part in (line.y, gap)])
        text = [name for line in mine for name in [safe(line.name)] * (len(line.x) + 1)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": _array(x * factor),
                "y": _array(y),
                "text": text,
                "connectgaps": False,
                "line": {"color": drawn, "width": 1},
                "hovertemplate": "%{y}<extra>%{text}</extra>",
            }
        )
    return traces


def _levels(levels: Sequence[Level], looks: Scheme, *, log: bool) -> tuple[list[Any], list[Any]]:
    """Return lines and bands over the whole width, and what they are called.

    On a logarithmic axis plotly wants the height of a shape as it is, and that of a text as its
    power of ten.
    """
    import math

    shapes: list[Any] = []
    notes = []
    for level in levels:
        if log and level.value <= 0:
            continue
        if level.low is not None and level.high is not None:
            band = {"type": "rect", "y0": level.low, "y1": level.high, "line": {"width": 0}}
            shapes.append({**band, **ACROSS, "fillcolor": looks.text, "opacity": 0.12})
        line = {"color": looks.text, "width": 1.5, "dash": "dash"}
        height = {"y0": level.value, "y1": level.value}
        shapes.append({"type": "line", "line": line, **height, **ACROSS, "layer": "above"})
        notes.append(
            {
                "text": f"predicted {show(level.value)}",
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "yref": "y",
                "y": math.log10(level.value) if log else level.value,
                "yanchor": "bottom",
                "showarrow": False,
                "bgcolor": looks.background,
                "opacity": 0.9,
            }
        )
    return shapes, notes


ACROSS = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}


def level_text(level: Level) -> str:
    """Return what a level says, in one line."""
    between = ""
    if level.low is not None and level.high is not None:
        percent = f"{level.coverage:.0%}: " if level.coverage is not None else ""
        between = f" ({percent}{show(level.low)} – {show(level.high)})"
    return f"{level.name} for {level.run}: {show(level.value)}{between}"


def _stretches(stretches: Sequence[Stretch], looks: Scheme, factor: float) -> list[Any]:
    """Return spans as blocks, a lane for each run, a colour for each name."""
    runs = list(dict.fromkeys(stretch.run for stretch in stretches))
    names = list(dict.fromkeys(stretch.name for stretch in stretches))
    lane = 1 / max(1, len(runs))
    return [
        {
            "type": "rect",
            "xref": "x",
            "x0": stretch.start * factor,
            "x1": stretch.end * factor,
            "yref": "paper",
            "y0": 1 - (runs.index(stretch.run) + 1) * lane,
            "y1": 1 - runs.index(stretch.run) * lane,
            "line": {"width": 0},
            "fillcolor": span_colour(names.index(stretch.name), looks),
            "opacity": 0.22,
            "layer": "below",
        }
        for stretch in stretches
    ]


def span_colour(place: int, looks: Scheme) -> str:
    """Return the colour of spans of one name, counted from the end: lines begin at the front."""
    return looks.lines[-1 - place % len(looks.lines)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _array(numbers: Any) -> dict[str, str]:
    """Return numbers as plotly takes them without text: base64 of their bytes."""
    import numpy as np

    raw = np.ascontiguousarray(numbers, dtype="<f8").tobytes()
    return {"dtype": "f8", "bdata": base64.b64encode(raw).decode("ascii")}
