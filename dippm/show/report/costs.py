"""What inference or a training run costs, with its picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from dippm.base.numbers import show
from dippm.decide.costs import UNITS, RunningCost
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import ESTIMATES, Part, estimate_row, warned
from dippm.show.report.shell import listed, note_markup, page, table_markup
from dippm.show.report.tables import Fitted

LABELS = {
    "gpu_hours": "hours of the GPU",
    "energy_kwh": "energy",
    "price": "price",
    "carbon_g": "carbon",
}


def cost_parts(cost: RunningCost) -> Iterator[Part]:
    """Yield the costs, what they are of, warnings, and what checks the prediction."""
    yield f" {cost.prediction.title}"
    yield str(cost)
    yield f" {cost.prediction.footer}"
    yield from warned(cost.prediction.warnings)
    yield cost.prediction


def cost_page(cost: RunningCost, **_: Any) -> str:
    """Return the page of a cost: each as a bar, and as a row with its interval."""
    rows = [
        estimate_row(f"{LABELS[name]} {unit}".strip(), found)
        if (found := getattr(cost, name))
        else (LABELS[name], f"not available: {cost.absent[name]}", "")
        for name, unit in units(cost).items()
    ]
    head, *_rest, basis = str(cost).split("\n")
    body = f"<p>{note_markup(head)}</p>" + cost_bars(cost)
    body += table_markup(Fitted(ESTIMATES, rows)) + f"<p>{note_markup(basis)}</p>"
    p = cost.prediction
    body += listed(f"! {warning}" for warning in p.warnings) + f"<small>{escape(p.footer)}</small>"
    return page(p.title, body, {**cost.to_dict(), "verify": p.verify})


def units(cost: RunningCost) -> dict[str, str]:
    """Return the unit of each cost; that of the price is the currency."""
    return UNITS | {"price": cost.currency}


def cost_bars(cost: RunningCost) -> str:
    """Return each cost as a bar with its interval; hours with those that the GPU idles."""
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
