"""Reports on predictions, in the terminal and as pages.

Sections: comparisons in the terminal; pages of a prediction and of a comparison; the memory check
of `fits`; running costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from dippm.base.answer import cell_text
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.decide.costs import UNITS, RunningCost
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.module_tree import MAX_DEPTH
from dippm.estimate.prediction import LABELS
from dippm.show.report.answers import ESTIMATES, AnswerPart, StderrLine, estimate_row, warning_lines
from dippm.show.report.bars import Bar, bars
from dippm.show.report.shell import note_list, note_markup, page, table_markup, with_code
from dippm.show.report.tables import Column, TerminalTable

if TYPE_CHECKING:
    from dippm.decide.memory_fit import MemoryFit
    from dippm.estimate.comparison import Comparison
    from dippm.estimate.epoch import Epoch
    from dippm.estimate.prediction import Prediction

HEADS = {
    "source": "model",
    "memory_mb": "memory MB",
    "energy_j": "energy J",
    "latency_ms": "latency ms",
    "power_w": "power W",
    "mig": "MIG",
}
WHERE = ("source", "device", "slice", "precision", "batch")
RANKS = {"power_w": 4, "energy_j": 3, "mig": 1}
INTERVALS = {"memory_mb": ("memory 90 %", 5), "latency_ms": ("latency 90 %", 2)}
"""Header and rank of the intervals in a terminal; pages and files have all intervals."""
MOST_REMARKS = 20
"""Maximum number of different warnings that are listed."""


# Comparisons in the terminal.


def comparison_parts(comparison: Comparison) -> Iterator[AnswerPart]:
    """Yield the predictions, failures, warnings, and the command that checks the first one."""
    if comparison.predictions:
        yield comparison_table(comparison)
    yield from map(StderrLine, comparison_remarks(comparison))
    yield from comparison.predictions[:1]


def comparison_table(comparison: Comparison) -> TerminalTable:
    """Return the predictions; a column with equal cells becomes part of the title."""
    rows = [row for row in comparison.rows() if row["error"] is None]
    first, varies = rows[0], where_they_differ(comparison)
    shared = [n for n in WHERE if n not in varies and first[n] is not None]
    targets = [n for n in LABELS if any(row[n] is not None for row in rows)]
    fit = [] if all(row["fits"] for row in rows) else ["fits"]
    columns = [Column(HEADS.get(n, n), folds=n in ("source", "device")) for n in varies]
    for target in targets:
        columns.append(Column(HEADS[target], rank=RANKS.get(target, 0)))
        if target in INTERVALS:
            columns.append(Column(INTERVALS[target][0], rank=INTERVALS[target][1]))
    columns += [*(Column(n) for n in fit), Column(HEADS["mig"], rank=RANKS["mig"])]
    checkpoints = dict.fromkeys(p.provenance.checkpoint for p in comparison)
    return TerminalTable(
        columns,
        [
            [
                *(cell_text(row[n]) for n in varies),
                *(text for n in targets for text in _target_cells(row, n)),
                *(cell_text(row[n]) for n in (*fit, "mig")),
            ]
            for row in rows
        ],
        " " + " · ".join(f"batch {first[n]}" if n == "batch" else str(first[n]) for n in shared),
        " " + ", ".join(checkpoints),
    )


def where_they_differ(comparison: Comparison) -> list[str]:
    """Return the names of the columns in which the predictions differ."""
    rows = [row for row in comparison.rows() if row["error"] is None]
    return [n for n in WHERE if any(row[n] != rows[0][n] for row in rows)] or ["source"]


def comparison_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield the warnings with their numbers of rows, then each failure with its reason."""
    warnings = Counter(warning for p in comparison for warning in p.warnings)
    total = len(comparison)
    for warning, count in warnings.most_common(MOST_REMARKS):
        yield f" ! {printable(warning)}{'' if count == total else f' ({count} of {total})'}"
    if len(warnings) > MOST_REMARKS:
        yield f" ! and {len(warnings) - MOST_REMARKS} other warnings, see --json of dippm predict"
    for reason in dict.fromkeys(failure.error.message for failure in comparison.absent):
        yield f" absent: {_indent(reason)}"
    for failure in comparison.failures:
        c = failure.conditions
        place = f" on {failure.device}, {failure.precision}" if failure.device else ""
        place = f" on {c.device.name}, {c.precision}, batch {c.batch}" if c else place
        yield f" failed: {printable(failure.source)}{place}: {_indent(failure.error.message)}"
        if failure.error.hint:
            yield "         " + _indent(failure.error.hint)


def _indent(text: str) -> str:
    """Indent all but the first line, so that text from outside cannot imitate DIPPM's lines."""
    return printable(text, keep="\n").replace("\n", "\n           ")


def _target_cells(row: Mapping[str, Any], target: str) -> list[str]:
    """Return a value and, if shown, its interval."""
    ends = between(row[f"{target}_low"], row[f"{target}_high"])
    return [cell_text(row[target]), *[ends] * (target in INTERVALS)]


# Pages of a prediction and of a comparison, with bar charts.


MOST_KINDS = 12
"""Maximum number of operator kinds with a bar of their own; the others share one."""
MEMORY_PARTS = {
    "weights_mb": "weights",
    "gradients_mb": "gradients",
    "optimizer_mb": "optimizer",
    "activations_mb": "activations",
    "workspace_mb": "workspace",
    "context_mb": "context",
}


def render_report(prediction: Prediction, *, epoch: Epoch | None = None, **_: Any) -> str:
    """Return the page of a prediction as text.

    Args:
        prediction: prediction with or without operators.
        epoch: cost of an epoch; None leaves it out.
    """
    from dippm.show.report.console import operator_table, tree_table

    body = answer_markup(prediction) + (f"<p>{note_markup(str(epoch))}</p>" if epoch else "")
    body += memory_bars(prediction) + time_bars(prediction)
    tree = tree_table(prediction.tree, MAX_DEPTH)
    body += f"<h2>By module</h2>{table_markup(tree, typed=True)}"
    if prediction.operators:
        operators = operator_table(prediction, len(prediction.operators))
        body += f"<h2>By operator</h2>{table_markup(operators)}"
    document = {**prediction.to_dict(), "tree": prediction.tree.to_dict()}
    return page(prediction.title, body, document)


def render_comparison(comparison: Comparison) -> str:
    """Return the page of a comparison as text."""
    title = f"{len(comparison)} predictions"
    if comparison.failures:
        title += f", {len(comparison.failures)} failed"
    body = ""
    if comparison.predictions:
        table = comparison_table(comparison)
        body = f"<p>{note_markup(table.title.strip())}</p>" if table.title.strip() else ""
        body += latency_bars(comparison) + capacity_bars(comparison) + table_markup(table)
        body += f"<small>{note_markup(table.caption.strip())}</small>"
    return page(title, body + note_list(comparison_remarks(comparison)), comparison.rows())


def answer_markup(prediction: Prediction) -> str:
    """Return the values of a prediction as markup, without a title."""
    return f'<div class="wide">{with_code(prediction.answer_html(titled=False))}</div>'


MOST_ROOM = 4
"""Ratio of capacity to need above which a bar of parts does not show the capacity."""


def memory_bars(prediction: Prediction, room_mb: float | None = None) -> str:
    """Return the parts of the memory as bars, with the capacity as the limit.

    A capacity that would leave the parts too short to see is said and not drawn.

    Args:
        prediction: prediction with the memory.
        room_mb: available memory in MB; None for the whole capacity.
    """
    if prediction.memory_mb is None:
        return ""
    c = prediction.conditions
    place, capacity_mb = (c.mig or c.device).name, room_mb or c.capacity_mb
    parts = prediction.memory_parts
    is_near = parts is None or capacity_mb <= MOST_ROOM * prediction.memory_mb
    bar = Bar(
        "predicted",
        prediction.memory_mb,
        f"{show(prediction.memory_mb)} of {capacity_mb:,.0f} MB",
        prediction.intervals.get("memory_mb"),
        float(capacity_mb) if is_near else None,
        memory_parts(parts) if parts is not None else (),
    )
    has = f"{place} has {capacity_mb:,.0f} MB"
    has = has if room_mb is None else f"{room_mb:,.0f} MB of {place} may be taken"
    return bars("memory, MB", [bar], limit=has)


def memory_parts(parts: MemoryParts) -> tuple[tuple[str, float], ...]:
    """Return the label and size in MB of each memory part that is not empty."""
    found = ((name, float(getattr(parts, key))) for key, name in MEMORY_PARTS.items())
    return tuple((name, value) for name, value in found if value > 0)


def time_bars(prediction: Prediction) -> str:
    """Return the latency by kind of operator as bars, the costliest first."""
    spent: dict[str, tuple[float, int]] = {}
    for cost in prediction.operators:
        time_ms, count = spent.get(cost.title, (0.0, 0))
        spent[cost.title] = time_ms + cost.time_ms, count + 1
    whole = sum(time_ms for time_ms, _ in spent.values())
    ordered = sorted(spent.items(), key=lambda item: -item[1][0])
    others = [item for _, item in ordered[MOST_KINDS:]]
    rows = [(name if n == 1 else f"{name} ×{n}", time_ms) for name, (time_ms, n) in ordered]
    rows = rows[:MOST_KINDS]
    if others:
        rows.append((f"{len(others)} other kinds", sum(time_ms for time_ms, _ in others)))
    made = [
        Bar(name, value, f"{show(value)} ms, {value / whole:.1%}") for name, value in rows if whole
    ]
    return bars("time by kind of operator, ms", made)


def latency_bars(comparison: Comparison) -> str:
    """Return the latency of each prediction with its interval."""
    rows = [
        Bar(name, p.latency_ms, f"{show(p.latency_ms)} ms", p.intervals.get("latency_ms"))
        for name, p in _labelled(comparison)
        if p.latency_ms is not None
    ]
    return bars("predicted latency, ms", rows)


def capacity_bars(comparison: Comparison) -> str:
    """Return the memory of each prediction as bars, with the capacity as the limit."""
    rows = [
        Bar(
            name,
            p.memory_mb,
            f"{show(p.memory_mb)} of {(p.conditions.mig or p.conditions.device).memory_mb:,} MB",
            p.intervals.get("memory_mb"),
            float((p.conditions.mig or p.conditions.device).memory_mb),
        )
        for name, p in _labelled(comparison)
        if p.memory_mb is not None
    ]
    return bars("predicted memory, MB", rows, limit="what the GPU or slice has")


def _labelled(comparison: Comparison) -> Iterator[tuple[str, Prediction]]:
    """Yield each prediction with a label of the columns in which it differs from the others."""
    columns = where_they_differ(comparison)
    rows = (row for row in comparison.rows() if row["error"] is None)
    for row, prediction in zip(rows, comparison.predictions, strict=True):
        parts = [f"batch {row[n]}" if n == "batch" else str(row[n]) for n in columns if row[n]]
        yield " · ".join(parts), prediction


# Whether a module fits the memory.


def fit_parts(fit: MemoryFit) -> Iterator[AnswerPart]:
    """Yield the answer as text, then the prediction, whose part is the checking command."""
    yield str(fit)
    yield fit.prediction


def fit_page(fit: MemoryFit, **_: Any) -> str:
    """Return the page of a memory check: whether the module fits, and the parts of the memory."""
    shown = replace(fit.prediction, warnings=fit.warnings)
    body = f"<p><b>{note_markup(fit.summary)}</b></p>{memory_bars(shown, room_mb=fit.room_mb)}"
    return page(shown.title, body + answer_markup(shown) + time_bars(shown), fit.to_dict())


# Running costs.


COST_LABELS = {
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
        estimate_row(f"{COST_LABELS[name]} {unit}".strip(), found)
        if (found := getattr(cost, name))
        else (COST_LABELS[name], f"not available: {cost.absent[name]}", "")
        for name, unit in _cost_units(cost).items()
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


def _cost_units(cost: RunningCost) -> dict[str, str]:
    """Return the unit of each quantity; that of the price is the currency."""
    return UNITS | {"price": cost.currency}


def cost_bars(cost: RunningCost) -> str:
    """Return each quantity as a bar with its interval; hours include idle hours."""
    made = ""
    for name, unit in _cost_units(cost).items():
        found = getattr(cost, name)
        if found is None:
            continue
        bar = Bar(
            COST_LABELS[name], found.value, f"{show(found.value)} {unit}".strip(), found.interval
        )
        rows = [bar]
        if name == "gpu_hours" and cost.idle_hours:
            rows.append(Bar("idle", cost.idle_hours, f"{show(cost.idle_hours)} h", muted=True))
        made += bars(f"{COST_LABELS[name]}{f', {unit}' if unit else ''}", rows)
    return made
