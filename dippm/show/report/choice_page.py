"""A choice as one self-contained page: Pareto front, ranking, and everything as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.choice import Choice, Contender
from dippm.show.report.bars import Bar, bars
from dippm.show.report.choice import (
    LABELS,
    advice,
    choice_table,
    cost_label,
    percent,
    remarks,
    slice_table,
)
from dippm.show.report.plotted import (
    apply_style,
    figure_markup,
    log_ticks,
    require_libraries,
    script,
)
from dippm.show.report.shell import note_list, page, table_markup

LABEL_SIZE = (0.3, 0.08)
"""Width and height of a label relative to the plot, on a phone."""
SAME = (0.005, 0.005)
SIDES = ("top right", "bottom right", "top left", "bottom left")
BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#8d99ae"


def choice_page(choice: Choice, **_: Any) -> str:
    """Return the page of a choice: bars for a choice by size, else the Pareto front.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    everything = len(choice.contenders)
    notes = note_list(remarks(choice, everything))
    if choice.by == "size":
        said = note_list(advice(choice))
        body = said + slice_bars(choice) + table_markup(slice_table(choice)) + notes
        return page(choice.title, body, choice.to_dict())
    plot = figure_markup(front_figure(choice), "choice")
    table = table_markup(choice_table(choice, everything), name="ranking")
    return page(choice.title, plot + notes + table, choice.to_dict(), script=script())


def slice_bars(choice: Choice) -> str:
    """Return bars of the memory that is needed and available, and of the latency, per place."""
    known = [c for c in choice.contenders if c.prediction is not None]
    memory, latency = [], []
    for c in known:
        name = c.name if c is not choice.best else f"{c.name} (smallest that will do)"
        needed, time = c.estimate("memory_mb"), c.estimate("latency_ms")
        is_out = choice.reason(c) is not None
        bound_mb = c.memory_bound_mb
        if needed is not None and bound_mb is not None:
            said = f"up to {show(bound_mb)} of {c.capacity_mb:,} MB"
            memory.append(
                Bar(name, needed.value, said, needed.interval, float(c.capacity_mb), muted=is_out)
            )
        if time is not None:
            said = f"{show(time.value)} ms"
            limit = choice.limits.slo_ms
            latency.append(Bar(name, time.value, said, time.interval, limit, muted=is_out))
    held = f"limit of {choice.limits.slo_ms:g} ms" if choice.limits.slo_ms is not None else ""
    return bars("memory needed, MB (grey: will not do)", memory, limit="what it has") + bars(
        "latency, ms", latency, limit=held
    )


def front_figure(choice: Choice) -> Any:
    """Return a plot of latency against cost or energy of every place, with the Pareto front.

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
    places = [at for c in choice.contenders if (at := choice.position(c)) is not None]
    figure.update_xaxes(title=x, **log_ticks(at[0] for at in places))
    figure.update_yaxes(title=y, **log_ticks(at[1] for at in places))
    return apply_style(figure, 560)


def _points(choice: Choice, group: Sequence[Contender], name: str, colour: str) -> dict[str, Any]:
    """Return a trace of places; steps connect those on the front."""
    labels, sides = _labels(choice, group)
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
        "text": labels,
        "textposition": sides,
        "textfont": {"size": 10},
        "name": name,
        "hovertext": [_hover(choice, c) for c in group],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _labels(choice: Choice, group: Sequence[Contender]) -> tuple[list[str], list[str]]:
    """Return label and side of each place such that labels of neighbours do not overlap.

    Places at one position share a label.
    """
    at = [choice.position(c) or (1.0, 1.0) for c in group]
    everywhere = [p for c in choice.contenders if (p := choice.position(c)) is not None]
    spans = [log(max(axis) / min(axis)) for axis in zip(*everywhere, strict=True)]
    labels: list[str] = []
    sides: list[str] = []
    for n, c in enumerate(group):
        label = escape(printable(c.name))
        same = next((k for k in range(n) if labels[k] and _are_close(at[k], at[n], SAME)), None)
        if same is not None:
            labels[same] += f", {label}"
            label = ""
        reach = [part * span for part, span in zip(LABEL_SIZE, spans, strict=True)]
        taken = [sides[k] for k in range(n) if labels[k] and _are_close(at[k], at[n], reach)]
        sides.append(next((side for side in SIDES if side not in taken), SIDES[0]))
        labels.append(label)
    return labels, sides


def _are_close(one: Sequence[float], other: Sequence[float], reach: Sequence[float]) -> bool:
    """Return whether two places are within reach of each other on both logarithmic axes."""
    return all(abs(log(a / b)) <= near for a, b, near in zip(one, other, reach, strict=True))


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
