"""Cost of inference or of a training run in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from dippm.base.number_format import show
from dippm.decide.costs import UNITS, RunningCost
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import ESTIMATES, AnswerPart, estimate_row, warning_lines
from dippm.show.report.shell import note_list, note_markup, page, table_markup
from dippm.show.report.tables import TerminalTable

LABELS = {
    "gpu_hours": "hours of the GPU",
    "energy_kwh": "energy",
    "price": "price",
    "carbon_g": "carbon",
}


def cost_parts(cost: RunningCost) -> Iterator[AnswerPart]:
    """Yield the costs, their basis, warnings, and the command that checks the prediction."""
    yield f" {cost.prediction.title}"
    yield str(cost)
    yield f" {cost.prediction.footer}"
    yield from warning_lines(cost.prediction.warnings)
    yield cost.prediction


def cost_page(cost: RunningCost, **_: Any) -> str:
    """Return the page of a cost: each quantity as a bar, and as a row with its interval."""
    rows = [
        estimate_row(f"{LABELS[name]} {unit}".strip(), found)
        if (found := getattr(cost, name))
        else (LABELS[name], f"not available: {cost.absent[name]}", "")
        for name, unit in units(cost).items()
    ]
    head, *_rest, basis = str(cost).split("\n")
    body = f"<p>{note_markup(head)}</p>" + cost_bars(cost)
    body += table_markup(TerminalTable(ESTIMATES, rows)) + f"<p>{note_markup(basis)}</p>"
    p = cost.prediction
    body += (
        note_list(f"! {warning}" for warning in p.warnings) + f"<small>{escape(p.footer)}</small>"
    )
    document = cost.to_dict()
    absent = {**document["absent"], **p.unverified}
    return page(p.title, body, {**document, "absent": absent, "verify": p.verify})


def units(cost: RunningCost) -> dict[str, str]:
    """Return the unit of each quantity; that of the price is the currency."""
    return UNITS | {"price": cost.currency}


def cost_bars(cost: RunningCost) -> str:
    """Return each quantity as a bar with its interval; hours include idle hours."""
    made = ""
    for name, unit in units(cost).items():
        found = getattr(cost, name)
        if found is None:
            continue
        bar = Bar(LABELS[name], found.value, f"{show(found.value)} {unit}".strip(), found.interval)
        rows = [bar]
        if name == "gpu_hours" and cost.idle_hours:
            rows.append(Bar("idle", cost.idle_hours, f"{show(cost.idle_hours)} h", muted=True))
        made += bars(f"{LABELS[name]}{f', {unit}' if unit else ''}", rows)
    return made
