"""A comparison in the terminal: shared values in the title, failures below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dippm.base.answer import cell_text
from dippm.base.number_format import between
from dippm.base.printable import printable
from dippm.estimate.comparison import Comparison
from dippm.estimate.prediction import LABELS
from dippm.show.report.parts import AnswerPart, StderrLine
from dippm.show.report.tables import Column, TerminalTable

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


def comparison_parts(comparison: Comparison) -> Iterator[AnswerPart]:
    """Yield the predictions, failures, warnings, and the command that checks the first one."""
    if comparison.predictions:
        yield comparison_table(comparison)
    yield from map(StderrLine, remarks(comparison))
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
                *(text for n in targets for text in _cells(row, n)),
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


def remarks(comparison: Comparison) -> Iterator[str]:
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


def _cells(row: Mapping[str, Any], target: str) -> list[str]:
    """Return a value and, if shown, its interval."""
    ends = between(row[f"{target}_low"], row[f"{target}_high"])
    return [cell_text(row[target]), *[ends] * (target in INTERVALS)]
