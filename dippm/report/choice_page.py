"""A choice as one self-contained page: the Pareto front, the ranking, everything as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dippm.choice import Choice, Contender
from dippm.figures import show
from dippm.printable import printable
from dippm.report.choice import LABELS, choice_table, cost_label, percent, remarks
from dippm.report.files import write_text
from dippm.report.html import listed, page, table_markup
from dippm.report.plotted import drawn, require_libraries, script

BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#8d99ae"
STYLE = "<style>#ranking td:not(:last-child) { white-space: nowrap }</style>"


def write_choice_page(path: Path, choice: Choice) -> None:
    """Write the page of a choice.

    Raises:
        DippmError: if the file cannot be written, or plotly or jinja2 is missing.
    """
    everything = len(choice.contenders)
    plot = drawn(front_figure(choice), "choice")
    table = table_markup(choice_table(choice, everything), 'id="ranking"')
    body = script() + plot + listed(remarks(choice, everything)) + STYLE + table
    write_text(path, page(choice.title, body, choice.to_dict()))


def front_figure(choice: Choice) -> Any:
    """Return latency against cost, or energy, of every place, with its intervals and the front.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    import plotly.graph_objects as go

    on_front = set(map(id, choice.front))
    groups = {
        "no choice": [c for c in choice.contenders if choice.reason(c) is not None],
        "beaten in both": [c for c in choice.ranked if id(c) not in on_front],
        "front": [c for c in choice.front if choice.reason(c) is None],
    }
    figure = go.Figure()
    colours = dict(zip(groups, (GREY, BLUE, RED), strict=True))
    for name, group in groups.items():
        known = [c for c in group if choice.position(c) is not None]
        if known:
            figure.add_scatter(**_points(choice, known, name, colours[name]))
    x, y = (_title(choice, name) for name in choice.axes)
    figure.update_xaxes(title=x, type="log")
    figure.update_yaxes(title=y, type="log")
    return figure.update_layout(
        template="plotly_white",
        height=560,
        margin={"l": 10, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "y": 1.06},
    )


def _points(choice: Choice, group: Sequence[Contender], name: str, colour: str) -> dict[str, Any]:
    """Return a trace of places; those of the front are joined by steps."""
    values: dict[str, list[float]] = {}
    errors: dict[str, dict[str, Any]] = {}
    for axis, column in zip("xy", choice.axes, strict=True):
        found = [c.estimate(column) for c in group]
        known = [estimate for estimate in found if estimate is not None]
        values[axis] = [estimate.value for estimate in known]
        errors[axis] = {
            "type": "data",
            "symmetric": False,
            "array": [e.interval.high - e.value for e in known],
            "arrayminus": [e.value - e.interval.low for e in known],
            "thickness": 0.6,
            "width": 0,
            "color": colour,
            "visible": name == "front",
        }
    return {
        "x": values["x"],
        "y": values["y"],
        "error_x": errors["x"],
        "error_y": errors["y"],
        "mode": "markers+lines+text" if name == "front" else "markers",
        "line": {"shape": "hv", "color": colour, "width": 1},
        "marker": {"color": colour, "size": 9 if name == "front" else 6},
        "text": [escape(c.name) for c in group],
        "textposition": "top right",
        "textfont": {"size": 10},
        "name": name,
        "hovertext": [_hover(choice, c) for c in group],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _hover(choice: Choice, c: Contender) -> str:
    lines = [c.name]
    for column in (*LABELS, "power_w", "memory_mb"):
        found = c.estimate(column)
        if found is not None:
            lines.append(f"{_title(choice, column)}: {show(found.value)}")
    if c.probability_first is not None:
        lines.append(f"really the first: {percent(c.probability_first)}")
    lines.append(choice.reason(c) or "")
    return "<br>".join(escape(printable(line)) for line in lines if line)


def _title(choice: Choice, column: str) -> str:
    if column == "cost_per_million":
        return cost_label(choice)
    return LABELS.get(column) or {"power_w": "power W", "memory_mb": "memory MB"}[column]
