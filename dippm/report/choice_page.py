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
from dippm.report.html import page
from dippm.report.plotted import OFFLINE, ReportNotInstalledError
from dippm.report.tables import Fitted

BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#8d99ae"


def write_choice_page(path: Path, choice: Choice) -> None:
    """Write the page of a choice.

    Raises:
        DippmError: if the file cannot be written, or plotly is missing.
    """
    everything = len(choice.contenders)
    figure = front_figure(choice)
    from plotly.offline import get_plotlyjs

    plot = figure.to_html(full_html=False, include_plotlyjs=False, div_id="choice", config=OFFLINE)
    notes = [*remarks(choice, everything)]
    listed = "".join(f"<li>{escape(printable(note.strip()))}</li>" for note in notes)
    table = _markup(choice_table(choice, everything))
    body = f"<script>{get_plotlyjs()}</script>{plot}<ul>{listed}</ul>{table}"
    write_text(path, page(choice.title, body, choice.to_dict()))


def require_plotly() -> None:
    """Check that a page can be made, before any work is done for it.

    Raises:
        ReportNotInstalledError: if plotly is missing.
    """
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise ReportNotInstalledError(
            f"a page needs {error.name}", "Install it: pip install 'dippm[report]'."
        ) from error


def front_figure(choice: Choice) -> Any:
    """Return latency against cost, or energy, of every place, with its intervals and the front.

    Raises:
        ReportNotInstalledError: if plotly is missing.
    """
    require_plotly()
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


def _markup(table: Fitted) -> str:
    head = "".join(f"<th>{escape(printable(column.name))}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    style = "<style>#ranking td:not(:last-child) { white-space: nowrap }</style>"
    return f'{style}<table id="ranking"><tr>{head}</tr>{body}</table>'
