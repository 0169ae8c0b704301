"""`figure_of`: a chart as plotly's JSON, built without plotly, whose validation takes seconds."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from dippm.base.number_format import show
from dippm.show.report.plotted import escape_tags
from dippm.show.report.runs.charts import Level, Line, Stretch
from dippm.show.ui.exploration import ChartView
from dippm.show.ui.lines import STEP
from dippm.show.ui.view import ChartData

MOST_TRACES = 40
"""Largest number of lines with a trace each; plotly takes 1 ms per trace, so more are joined."""
MOST_MARKED = 60
MOST_IN_LEGEND = 8
HEIGHT_OF_LANE, MOST_OF_LANES = 0.075, 0.55
"""Height of a lane of spans, and of all lanes at most, relative to the chart."""
MOST_OF_NAME = 10
DASHES = ("solid", "dash", "dot", "dashdot")


class Scheme(NamedTuple):
    """Colours for one background."""

    background: str
    text: str
    grid: str
    lines: tuple[str, ...]
    bad: str


SCHEMES = {
    "light": Scheme(
        "#ffffff",
        "#1c2430",
        "#dfe4ea",
        ("#0b62b5", "#b8470b", "#1b7f3b", "#8b2fa8", "#a3152c", "#0f7c85", "#7a5c00", "#55606e",
         "#c2185b", "#3d4fc4"),
        "#a3152c",
    ),
    "dark": Scheme(
        "#161b22",
        "#e6edf3",
        "#30363d",
        ("#62b0ff", "#ff9a5c", "#63d384", "#d79bf0", "#ff8593", "#4fd0d9", "#e3c04d", "#b3bcc7",
         "#ff8fbf", "#a5b0ff"),
        "#ff8593",
    ),
}  # fmt: skip


def figure_of(view: ChartData, wanted: ChartView, scheme: str) -> dict[str, Any]:
    """Return a figure.

    Args:
        view: data of the chart.
        wanted: visible ranges of its axes, and whether y is logarithmic.
        scheme: "light" or "dark".
    """
    looks = SCHEMES.get(scheme, SCHEMES["light"])
    factor = 1000.0 if view.clock else 1.0  # plotly's dates are milliseconds
    pairs = list(zip(view.chart.lines, view.colours, strict=True))
    hover = _hover(view)
    traces = (
        [part for line, place in pairs for part in _traces(line, place, looks, factor, hover)]
        if len(pairs) <= MOST_TRACES
        else _join_traces(pairs, looks, factor, hover)
    )
    traces += _endings(view, looks, factor)
    shapes, notes = _levels(view.chart.levels, looks, log=wanted.log)
    notes += _nothing(view)
    axis = {"gridcolor": looks.grid, "zerolinecolor": looks.grid, "linecolor": looks.grid}
    bars, lanes = _stretches(view.chart.stretches, looks, factor)
    traces += bars
    height = min(MOST_OF_LANES, HEIGHT_OF_LANE * lanes["count"])
    is_named = len(pairs) <= MOST_IN_LEGEND
    layout = {
        "uirevision": "kept",
        "meta": {"title": escape_tags(view.chart.title)},
        "paper_bgcolor": looks.background,
        "plot_bgcolor": looks.background,
        "font": {"color": looks.text, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 64, "r": 12, "t": 26 if is_named else 8, "b": 42},
        "showlegend": is_named,
        "legend": {
            "orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"size": 11},
            "itemclick": False, "itemdoubleclick": False,
        },
        "hovermode": "closest",
        "dragmode": "zoom",
        "autosize": True,
        "shapes": shapes,
        "annotations": notes,
        "xaxis": {
            **axis,
            "title": {"text": escape_tags(view.chart.x_label), "standoff": 6},
            "type": "date" if view.clock else "linear",
            **_seen(wanted.x or _around(view.extent), factor),
            **({"anchor": "y2"} if bars else {}),
        },
        "yaxis": {
            **axis,
            "title": {"text": escape_tags(view.chart.y_label), "standoff": 6},
            "type": "log" if wanted.log else "linear",
            "exponentformat": "power",
            **_seen(wanted.y),
            "domain": [height + 0.03, 1] if bars else [0, 1],
        },
    }  # fmt: skip
    if bars:
        layout["barmode"] = "overlay"
        layout["uniformtext"] = {"minsize": 9, "mode": "hide"}
        layout["yaxis2"] = {
            **axis,
            "domain": [0, height],
            "range": [lanes["count"] - 0.5, -0.5],
            "tickvals": lanes["at"],
            "ticktext": lanes["runs"],
            "tickfont": {"size": 10},
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        }
    return {"data": traces, "layout": layout}


def _around(extent: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return a range of the x axis that holds everything, with a margin."""
    if extent is None:
        return None
    room = (extent[1] - extent[0]) * 0.02 or 0.5
    return extent[0] - room, extent[1] + room


def _seen(range_: tuple[float, float] | None, factor: float = 1.0) -> dict[str, Any]:
    if range_ is None:
        return {"autorange": True}
    return {"autorange": False, "range": [range_[0] * factor, range_[1] * factor]}


def _hover(view: ChartData) -> str:
    """Return the hover template of a point: value with unit, and time or step."""
    unit = f" {escape_tags(view.chart.unit)}" if view.chart.unit else ""
    if view.clock:
        when = "%{x|%Y-%m-%d %H:%M:%S} UTC"
    else:
        when = "step %{x:,}" if view.chart.x_label == STEP else "%{x:,.4~g} s"
    return f"%{{y:,.5~g}}{unit}<br>{when}"


def _traces(
    line: Line, place: int, looks: Scheme, factor: float, hover: str
) -> list[dict[str, Any]]:
    drawn = looks.lines[place % len(looks.lines)]
    x, name = _array(line.x * factor), escape_tags(line.name)
    shared = {"type": "scatter", "x": x, "name": name}
    extra = name
    parts = []
    if line.low is not None:
        edge: dict[str, Any] = {
            **shared,
            "mode": "lines",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        fill = {"fill": "tonexty", "fillcolor": _faint(drawn)}
        parts = [{**edge, "y": _array(line.low)}, {**edge, "y": _array(line.high), **fill}]
        extra += f" · mean of {line.n}"
    marked = len(line.x) <= MOST_MARKED
    style = DASHES[place // len(looks.lines) % len(DASHES)]
    main = {
        **shared,
        "y": _array(line.y),
        "mode": "lines+markers" if marked else "lines",
        "line": {"color": drawn, "width": 1.6, "dash": style},
        "marker": {"size": 4},
        "hovertemplate": f"{hover}<extra>{extra}</extra>",
    }
    return [*parts, main]


def _join_traces(
    pairs: Sequence[tuple[Line, int]], looks: Scheme, factor: float, hover: str
) -> list[dict[str, Any]]:
    """Return a trace per colour, with gaps between its lines; the text of a point names a line."""
    import numpy as np

    traces = []
    for number, drawn in enumerate(looks.lines):
        mine = [line for line, place in pairs if place % len(looks.lines) == number]
        if not mine:
            continue
        gap = np.full(1, np.nan)
        x = np.concatenate([part for line in mine for part in (line.x, gap)])
        y = np.concatenate([part for line in mine for part in (line.y, gap)])
        text = [name for line in mine for name in [escape_tags(line.name)] * (len(line.x) + 1)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": _array(x * factor),
                "y": _array(y),
                "text": text,
                "connectgaps": False,
                "showlegend": False,
                "line": {"color": drawn, "width": 1},
                "hovertemplate": f"{hover}<extra>%{{text}}</extra>",
            }
        )
    return traces


def _endings(view: ChartData, looks: Scheme, factor: float) -> list[dict[str, Any]]:
    """Return a cross at the last value of each line whose run did not end well."""
    import numpy as np

    crosses: list[tuple[float, float, str]] = []
    for line, ending in zip(view.chart.lines, view.endings, strict=False):
        there = np.flatnonzero(np.isfinite(line.y))
        if ending and len(there):
            last = int(there[-1])
            text = f"{escape_tags(line.name)}: {escape_tags(ending)}"
            crosses.append((float(line.x[last]) * factor, float(line.y[last]), text))
    if not crosses:
        return []
    x, y, texts = zip(*crosses, strict=True)
    mark = {"symbol": "x", "size": 9, "color": looks.bad, "line": {"width": 0}}
    return [
        {
            "type": "scatter", "mode": "markers", "x": x, "y": y, "text": texts,
            "name": "not finished",
            "marker": mark, "hovertemplate": "%{text}<extra></extra>", "cliponaxis": False,
        }
    ]  # fmt: skip


def _levels(levels: Sequence[Level], looks: Scheme, *, log: bool) -> tuple[list[Any], list[Any]]:
    """Return lines and bands over the whole width, and their labels.

    On a logarithmic axis plotly takes the height of a shape as a value, and that of a text as an
    exponent.
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


def _nothing(view: ChartData) -> list[dict[str, Any]]:
    """Return the text of a chart without any value."""
    import numpy as np

    if any(np.isfinite(line.y).any() for line in view.chart.lines):
        return []
    middle = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    return [{"text": "nothing to draw: the reason is below", **middle}]


ACROSS = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}


def level_text(level: Level) -> str:
    """Return the label of a level in one line."""
    between = ""
    if level.low is not None and level.high is not None:
        percent = f"{level.coverage:.0%}: " if level.coverage is not None else ""
        between = f" ({percent}{show(level.low)} – {show(level.high)})"
    return f"{level.name} for {level.run}: {show(level.value)}{between}"


def _stretches(
    stretches: Sequence[Stretch], looks: Scheme, factor: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return spans as bars with names, and the axis of their lanes below the chart.

    A bar lies in the lane of its nesting depth within its run; colours stand for names.
    """
    depth: dict[str, int] = {}
    for stretch in stretches:
        depth[stretch.run] = max(depth.get(stretch.run, 0), stretch.lane + 1)
    first, count = {}, 0
    for run, lanes in depth.items():
        first[run], count = count, count + lanes
    traces = []
    for place, name in enumerate(dict.fromkeys(stretch.name for stretch in stretches)):
        mine = [stretch for stretch in stretches if stretch.name == name]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "base": [stretch.start * factor for stretch in mine],
                "x": [(stretch.end - stretch.start) * factor for stretch in mine],
                "y": [first[stretch.run] + stretch.lane for stretch in mine],
                "width": 0.86,
                "yaxis": "y2",
                "name": escape_tags(name),
                "showlegend": False,
                "text": escape_tags(name),
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "textfont": {"color": looks.background},
                "marker": {"color": span_colour(place, looks), "line": {"width": 0}},
                "customdata": [
                    [escape_tags(stretch.run), show((stretch.end - stretch.start) * 1e3)]
                    for stretch in mine
                ],
                "hovertemplate": f"{escape_tags(name)}: %{{customdata[1]}} ms"
                "<extra>%{customdata[0]}</extra>",
            }
        )
    middles = [first[run] + (lanes - 1) / 2 for run, lanes in depth.items()]
    names = [_short(run) for run in depth]
    return traces, {"count": count, "at": middles, "runs": names}


def _short(name: str) -> str:
    """Return the name of a lane, cut to the width of the margin."""
    return escape_tags(name if len(name) <= MOST_OF_NAME else f"{name[: MOST_OF_NAME - 1]}…")


def span_colour(place: int, looks: Scheme) -> str:
    """Return the colour of spans of one name, taken from the end since lines start at the front."""
    return looks.lines[-1 - place % len(looks.lines)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _array(numbers: Any) -> dict[str, str]:
    """Return numbers in plotly's binary form: base64 of their bytes."""
    import numpy as np

    raw = np.ascontiguousarray(numbers, dtype="<f8").tobytes()
    return {"dtype": "f8", "bdata": base64.b64encode(raw).decode("ascii")}
