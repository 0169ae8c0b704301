"""The tables of answers that are printed from Python: those of the terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from functools import singledispatch
from html import escape
from typing import Any

from rich.console import Console

from dippm.base.numbers import show
from dippm.base.printable import printable
from dippm.decide.choice import Contender, Packing
from dippm.decide.explanation import Difference, Explanation, WhatIf
from dippm.decide.parallel.estimate import ParallelEstimate
from dippm.decide.power_sweep import PowerPoint, PowerSweep
from dippm.estimate.models.targets import Interval
from dippm.show.report.explanation import difference_table, module_table, what_if_table
from dippm.show.report.packing import packing_table
from dippm.show.report.packing import remarks as packing_remarks
from dippm.show.report.parallel import parallel_table
from dippm.show.report.shell import listed, table_markup
from dippm.show.report.sweep import power_table
from dippm.show.report.tables import Column, Fitted

DEPTH = 3
"""Levels of modules that are shown."""
WIDTH = 100
"""Columns where there is no terminal."""
ESTIMATES = (Column(""), Column("predicted"), Column("90 % interval"))
LABELS = {
    "latency_ms": "latency ms",
    "samples_per_s": "samples/s",
    "power_w": "power W",
    "energy_j": "energy J",
    "memory_mb": "memory MB",
}


@singledispatch
def table_of(answer: Any) -> Fitted:
    """Return the table of an answer."""
    raise TypeError(f"no table is known for {type(answer).__name__}")


@table_of.register
def _(answer: Difference) -> Fitted:
    return difference_table(answer, None)


@table_of.register
def _(answer: Explanation) -> Fitted:
    return module_table(answer, DEPTH)


@table_of.register
def _(answer: WhatIf) -> Fitted:
    return what_if_table(answer)


@table_of.register
def _(answer: PowerSweep) -> Fitted:
    return power_table(answer)


@table_of.register
def _(answer: PowerPoint) -> Fitted:
    names = ("latency_ms", "power_w", "energy_j")
    rows = [_estimate(name, getattr(answer, name), answer.intervals[name]) for name in names]
    title = f" power limit {answer.limit_w:g} W{', estimated' * answer.estimated}"
    return Fitted(ESTIMATES, rows, title)


@table_of.register
def _(answer: ParallelEstimate) -> Fitted:
    return parallel_table(answer)


@table_of.register
def _(answer: Packing) -> Fitted:
    return packing_table(answer)


@table_of.register
def _(answer: Contender) -> Fitted:
    rows = []
    for name in ("latency_ms", "samples_per_s", "energy_j", "memory_mb"):
        found = answer.estimate(name)
        if found is None:
            rows.append((LABELS[name], f"not available: {answer.why_absent(name)}", ""))
        else:
            rows.append(_estimate(name, found.value, found.interval))
    most = "none" if answer.largest_batch is None else f"{answer.largest_batch:,}"
    rows.append(("largest batch", most, f"of {answer.capacity_mb:,} MB"))
    rows.append(("copies", f"{answer.copies}", "side by side on a GPU"))
    captions = [f" ! {miss}" for miss in answer.misses]
    footer = answer.prediction.provenance.checkpoint if answer.prediction else ""
    title = f" {answer.name} · batch {answer.batch:,}"
    return Fitted(ESTIMATES, rows, title, "\n".join([*captions, f" {footer}"]))


def text(answer: Any) -> str:
    """Return an answer as text, as wide as the terminal."""
    out = io.StringIO()
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    console = Console(file=out, width=width, highlight=False, emoji=False, color_system=None)
    console.print(table_of(answer))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([*lines, *(f" {note}" for note in _notes(answer))])


def markup(answer: Any) -> str:
    """Return an answer as markup of a notebook."""
    table = table_of(answer)
    title = f"<p>{escape(printable(table.title.strip()))}</p>" if table.title else ""
    caption = [line for line in table.caption.split("\n") if line.strip()]
    return title + table_markup(table) + listed([*caption, *_notes(answer)])


def _notes(answer: Any) -> list[str]:
    """Return what to know before relying on an answer, each once, as printable lines."""
    if isinstance(answer, Packing):
        return [printable(remark.strip()) for remark in packing_remarks(answer)]
    found: Sequence[str] = getattr(answer, "warnings", ())
    if isinstance(answer, Difference):
        sides = (answer.before, answer.after)
        found = [w for side in sides for w in side.prediction.warnings]
    prediction = getattr(answer, "baseline", None) or getattr(answer, "prediction", None)
    if not found and prediction is not None:
        found = prediction.warnings
    return [f"! {printable(warning)}" for warning in dict.fromkeys(found)]


def _estimate(name: str, value: float, interval: Interval) -> tuple[str, str, str]:
    """Return the row of a quantity."""
    return LABELS[name], show(value), f"{show(interval.low)} – {show(interval.high)}"
