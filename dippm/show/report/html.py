"""One or several predictions as a self-contained page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dippm.base.number_format import show
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.module_tree import MAX_DEPTH
from dippm.show.report.bars import Bar, bars
from dippm.show.report.comparison import comparison_table, remarks, where_they_differ
from dippm.show.report.shell import note_list, note_markup, page, table_markup, with_code

if TYPE_CHECKING:
    from dippm.estimate.comparison import Comparison
    from dippm.estimate.epoch import Epoch
    from dippm.estimate.prediction import Prediction

MOST_KINDS = 12
"""Kinds of operators with a bar of their own."""
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
    return page(title, body + note_list(remarks(comparison)), comparison.rows())


def answer_markup(prediction: Prediction) -> str:
    """Return the values of a prediction as markup, without a title."""
    return f'<div class="wide">{with_code(prediction.answer_html(titled=False))}</div>'


def memory_bars(prediction: Prediction, room_mb: float | None = None) -> str:
    """Return the parts of the memory as bars, with the capacity as the limit.

    Args:
        prediction: prediction with the memory.
        room_mb: available memory in MB; None is all of it.
    """
    if prediction.memory_mb is None:
        return ""
    c = prediction.conditions
    place, capacity_mb = (c.mig or c.device).name, room_mb or c.capacity_mb
    parts = prediction.memory_parts
    bar = Bar(
        "predicted",
        prediction.memory_mb,
        f"{show(prediction.memory_mb)} of {capacity_mb:,.0f}",
        prediction.intervals.get("memory_mb"),
        float(capacity_mb),
        memory_parts(parts) if parts is not None else (),
    )
    has = f"{place} has {capacity_mb:,.0f} MB"
    has = has if room_mb is None else f"{room_mb:,.0f} MB of {place} may be taken"
    return bars("memory, MB", [bar], limit=has)


def memory_parts(parts: MemoryParts) -> tuple[tuple[str, float], ...]:
    """Return the non-empty parts of a memory, by their usual names."""
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
