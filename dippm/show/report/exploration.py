"""A searched design space in the terminal, and as a self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dippm.base.number_format import show
from dippm.base.printable import json_text, printable
from dippm.decide.exploration.design import Axis, Choices
from dippm.show.report.answers import AnswerPart, warning_lines
from dippm.show.report.plotted import apply_style, figure_markup, render, require_libraries
from dippm.show.report.shell import check_markup, note_list
from dippm.show.report.tables import Column, TerminalTable

if TYPE_CHECKING:
    from dippm.decide.exploration import EvaluatedDesign, Exploration, Objective


def front_parts(found: Exploration) -> Iterator[AnswerPart]:
    """Yield the front, notes, why designs have no values, and what checks the first design."""
    columns, cells = found.table()
    yield TerminalTable([Column(name) for name in columns], cells, f" {found.title}")
    yield from warning_lines(found.notes())
    yield from warning_lines(
        f"{count} failed: {reason}" for reason, count in found.reasons().items()
    )
    yield f" {found.verify_line}"


TEMPLATE = "exploration.html.jinja"
BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#c3c9d3"
DRAWN, LISTED = 20_000, 2_000
"""Largest numbers of designs outside the front that are drawn and listed, to bound the page."""


def exploration_page(found: Exploration, **_: Any) -> str:
    """Return the page as text; it needs neither a network nor other files.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from markupsafe import Markup

    plot = figure_markup(pareto_figure(found), "front")
    template = (
        files("dippm.show.report").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
    )
    columns = found.columns()
    asked = found.question.describe()
    document = {**found.to_dict(), "designs": [tried.row() for tried in found.front]}
    return render(
        template,
        title=f"Design space: {found.title}",
        plot=Markup(plot),
        asked=asked,
        axes={name: _axis(axis) for name, axis in found.question.space.axes.items()},
        notes=Markup(note_list(f"! {note}" for note in found.notes())),
        columns=columns,
        front=[_table_row(tried, columns) for tried in found.front],
        reasons={printable(reason): n for reason, n in found.reasons().items()},
        designs=[_table_row(tried, columns) for tried in found.tried[:LISTED]],
        unlisted=max(0, len(found.tried) - LISTED),
        verify=Markup(check_markup(document)),
        document=json_text(document),
    )


def pareto_figure(found: Exploration) -> Any:
    """Return a plot of predicted designs and their front: two objectives, a third as colour.

    With one objective, its value is plotted over the order of the designs.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from plotly.graph_objects import Figure

    goals = found.question.objectives
    on_front = {tried.number for tried in found.front}
    others = [tried for tried in found.predicted if tried.number not in on_front]
    step = max(1, len(others) // DRAWN)
    missed = [t for t in others[::step] if t.outcome.violations and _is_drawn(t, goals)]
    beaten = [t for t in others[::step] if not t.outcome.violations]
    figure = Figure()
    _scatter(figure, missed, goals, "misses a constraint", {"color": GREY, "size": 6})
    _scatter(figure, beaten, goals, "feasible", {"color": BLUE, "size": 7, "opacity": 0.6})
    marker: dict[str, Any] = {"color": RED, "size": 10}
    if len(goals) > 2:
        third = goals[2]
        marker |= {
            "color": [tried.values[third.name] for tried in found.front],
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": third.label}},
        }
    _scatter(figure, found.front, goals, "on the front", marker)
    if len(goals) == 2:
        figure.data[-1].mode = "lines+markers"
        figure.data[-1].line = {"color": RED, "width": 1, "shape": "hv"}
    _limits(figure, found, goals)
    figure.update_xaxes(title=goals[0].label if len(goals) > 1 else "design")
    figure.update_yaxes(title=goals[1].label if len(goals) > 1 else goals[0].label)
    return apply_style(figure, 520)


def _scatter(
    figure: Any,
    designs: Sequence[EvaluatedDesign],
    goals: Sequence[Objective],
    name: str,
    marker: dict[str, Any],
) -> None:
    points = [_point(tried, goals) for tried in designs]
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="markers",
        marker=marker,
        name=name,
        text=[_hover(tried) for tried in designs],
        hovertemplate="%{text}<extra></extra>",
    )


def _point(tried: EvaluatedDesign, goals: Sequence[Objective]) -> tuple[float, float]:
    first = tried.values[goals[0].name]
    return (first, tried.values[goals[1].name]) if len(goals) > 1 else (tried.number, first)


def _is_drawn(tried: EvaluatedDesign, goals: Sequence[Objective]) -> bool:
    """Return whether a design has the plotted values; a pruned one may not."""
    return all(goal.name in tried.values for goal in goals[:2])


def _limits(figure: Any, found: Exploration, goals: Sequence[Objective]) -> None:
    """Draw the user's limits of the plotted quantities."""
    axes = ["x", "y"] if len(goals) > 1 else ["y"]
    for axis, goal in zip(axes, goals[:2], strict=False):
        for constraint in found.question.constraints:
            if constraint.quantity != goal.name:
                continue
            for limit in (constraint.low, constraint.high):
                if abs(limit) != float("inf"):
                    line = {axis: limit, "line_dash": "dot", "line_color": RED, "line_width": 1}
                    (figure.add_vline if axis == "x" else figure.add_hline)(**line)


def _hover(tried: EvaluatedDesign) -> str:
    lines = [f"{tried.number}: {tried.design}"]
    lines += [f"{name} {show(value)}" for name, value in tried.values.items()]
    lines += [tried.outcome.reason] * bool(tried.outcome.reason)
    return "<br>".join(escape(printable(line)) for line in lines)


def _axis(axis: Axis) -> str:
    return ", ".join(map(str, axis.labels)) if isinstance(axis, Choices) else str(axis)


def _table_row(tried: EvaluatedDesign, columns: Sequence[str]) -> dict[str, Any]:
    row = tried.row()
    cells = [row.get(column) for column in columns]
    return {
        "title": printable(f"{tried.design} {tried.outcome.reason}".strip()),
        "cells": [
            show(cell) if isinstance(cell, float) else "–" if cell is None else printable(str(cell))
            for cell in cells
        ],
        "numeric": [isinstance(cell, int | float) for cell in cells],
    }
