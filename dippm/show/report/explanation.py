"""Terminal tables of explanations, differences and what-if answers, and their number formats."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.answer import cell_text
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.explanation import Difference, Explanation, WhatIf
from dippm.decide.explanation.changes import LABELS
from dippm.decide.explanation.explanation import ATTRIBUTION, PARTS, OperatorRow
from dippm.show.report.answers import AnswerPart, warning_lines
from dippm.show.report.tables import OPERATOR_COLUMNS, Column, TerminalTable

SHORTEST_SHARE = 1e-6
"""Share of the whole below which a time is shown as 0."""
SHORTEST_PERCENT = 0.0005
"""Share that rounds to 0.0 %, and is shown without a sign."""
ROWS = 15
"""Default number of rows of a difference."""
DEPTH = 3
"""Default number of levels of modules."""
SELDOM = ("optimizer", "input copy")
"""Parts that are left out if they are 0."""


def explanation_parts(
    explanation: Explanation, *, depth: int = DEPTH, operators: int = 0
) -> Iterator[AnswerPart]:
    """Yield modules down to a depth, costliest operators, warnings, and the prediction."""
    yield module_table(explanation, depth)
    if operators:
        yield explained_table(explanation, operators)
    yield from warning_lines(explanation.prediction.warnings)
    yield explanation.prediction


def difference_parts(
    difference: Difference, *, depth: int | None = None, rows: int = ROWS
) -> Iterator[AnswerPart]:
    """Yield the changes, warnings, and the predictions of both sides."""
    sides = [side.prediction for side in (difference.before, difference.after)]
    yield difference_table(difference, depth, rows)
    yield from warning_lines(warning for side in sides for warning in side.warnings)
    yield from sides


def what_if_parts(found: WhatIf) -> Iterator[AnswerPart]:
    """Yield the changes, warnings, and the prediction of the baseline."""
    yield what_if_table(found)
    yield from warning_lines(found.baseline.warnings)
    yield found.baseline


def module_table(explanation: Explanation, depth: int) -> TerminalTable:
    """Return time, energy and memory by module, then the parts outside of operators."""
    whole, energy = explanation.latency_ms, explanation.prediction.energy_j
    columns = (
        Column("module", folds=True),
        Column("time ms"),
        Column("share"),
        Column("bound", rank=2),
        Column("energy J", rank=1),
        Column("weights MB", rank=3),
        Column("alive MB", rank=4),
    )
    rows: list[tuple[str, ...]] = []
    for row in explanation.modules(depth):
        module = row.module
        name = module.name or "(itself)"
        name += f" ×{module.count}" if module.count > 1 else ""
        if row.level and module.time_ms is not None and module.time_ms < SHORTEST_SHARE * whole:
            continue
        rows.append(
            (
                "  " * row.level + printable(name),
                format_time(module.time_ms or 0.0, whole),
                _percent(module.share or 0.0),
                row.bound,
                _energy(module.energy_j, energy),
                show(row.weights_mb) if row.weights_mb else "",
                "" if row.alive_mb is None else show(row.alive_mb),
            )
        )
    for part in explanation.parts:
        if part.name in SELDOM and not part.time_ms:
            continue
        rows.append(
            (
                f"  ({part.name})",
                format_time(part.time_ms, whole),
                _percent(part.share),
                "host" if part.name in ("host", "input copy") else "",
                _energy(part.energy_j, energy),
                "",
                "",
            )
        )
    return TerminalTable(columns, rows, " " + explanation.prediction.title, _caption(explanation))


def explained_table(explanation: Explanation, most: int) -> TerminalTable:
    """Return the costliest operators with their energy and memory."""
    columns = (
        *OPERATOR_COLUMNS,
        Column("energy J", rank=2),
        Column("weights MB", rank=3),
        Column("alive MB", rank=4),
    )
    costliest = sorted(explanation.operators, key=lambda row: -row.cost.time_ms)[:most]
    return TerminalTable(columns, [_operator(row, explanation) for row in costliest])


def difference_table(difference: Difference, depth: int | None, most: int = ROWS) -> TerminalTable:
    """Return the changes, the largest first; the last row is the whole model.

    Shares are relative to the time of the first side, so that they sum to the share of the whole.
    """
    before, after = difference.before.latency_ms, difference.after.latency_ms
    whole = max(before, after)
    columns = (
        Column("where", folds=True),
        Column("by", rank=2),
        Column("before ms"),
        Column("after ms"),
        Column("change ms"),
        Column("of before", rank=1),
    )
    rows: list[tuple[str, ...]] = [
        (
            row.what,
            row.by,
            format_time(row.before_ms, whole),
            format_time(row.after_ms, whole),
            _change(row.before_ms, row.after_ms, whole),
            _share(row.change_ms, before),
        )
        for row in difference.changes(depth, most)
        if max(abs(row.before_ms), abs(row.after_ms)) >= SHORTEST_SHARE * whole
    ]
    change = _change(before, after, whole)
    rows.append(
        ("all", "", show(before), show(after), change, _share(difference.change_ms, before))
    )
    caption = _sides(difference)
    if change == "0":
        moved = any(row[4] != "0" for row in rows)
        why = ": what some parts lose others gain" if moved else ""
        caption = f" both sides take the same time{why}\n{caption}"
    return TerminalTable(columns, rows, " " + difference_title(difference), caption)


def difference_title(difference: Difference) -> str:
    """Return the differences between the conditions in one printable line."""
    texts = [f"{name} {a} → {b}" for name, (a, b) in difference.changed.items()]
    name = difference.before.prediction.provenance.source
    shared = [] if "model" in difference.changed else [name]
    return printable(" · ".join([*shared, *texts]) or name)


def what_if_table(found: WhatIf) -> TerminalTable:
    """Return the effect of each change."""
    columns = (
        Column("what if", folds=True),
        Column("time ms"),
        Column("per sample"),
        Column("energy J", rank=1),
        Column("per sample", rank=2),
        Column("memory MB", rank=3),
        Column("how", folds=True),
    )
    base = found.baseline
    rows: list[tuple[str, ...]] = [
        ("as asked", cell_text(base.latency_ms), "", cell_text(base.energy_j), "",
         cell_text(base.memory_mb), "predicted")
    ]  # fmt: skip
    for row in found.rows():
        rows.append(
            (
                row["change"],
                cell_text(row["latency_ms"]),
                _ratio(row["time_ratio"]),
                cell_text(row["energy_j"]),
                _ratio(row["energy_ratio"]),
                cell_text(row["memory_mb"]),
                row["label"] if row["reason"] is None else "absent: " + printable(row["reason"]),
            )
        )
    used = dict.fromkeys(row["label"] for row in found.rows() if row["reason"] is None)
    notes = [f" {label}: {LABELS[label]}" for label in used if label != "predicted"]
    return TerminalTable(columns, rows, " " + base.title, "\n".join([" " + base.footer, *notes]))


def format_time(time_ms: float, whole_ms: float) -> str:
    """Format a time; one that is negligible against the whole is 0."""
    return show(time_ms) if abs(time_ms) >= SHORTEST_SHARE * whole_ms else "0"


def format_change(time_ms: float, whole_ms: float) -> str:
    """Format a change with its sign."""
    text = format_time(abs(time_ms), whole_ms)
    return text if text == "0" else ("+" if time_ms > 0 else "−") + text


def _operator(row: OperatorRow, explanation: Explanation) -> tuple[str, ...]:
    cost = row.cost
    return (
        cost.title,
        cost.path,
        format_time(cost.time_ms, explanation.latency_ms),
        f"{cost.share:.1%}",
        cost.bound,
        _energy(cost.energy_j, explanation.prediction.energy_j),
        show(row.weights_mb) if row.weights_mb else "",
        "" if row.alive_mb is None else show(row.alive_mb),
    )


def _caption(explanation: Explanation) -> str:
    lines = [explanation.prediction.footer]
    named = (part.name for part in explanation.parts if part.time_ms or part.name not in SELDOM)
    lines.append("; ".join(f"({name}) {PARTS[name]}" for name in named))
    parts = {n: v for n, v in explanation.memory().items() if abs(v) > 0.005}
    if parts:
        whole = show(explanation.prediction.memory_mb or 0.0)
        listed = " + ".join(f"{name} {show(value)}" for name, value in parts.items())
        lines.append(f"memory {whole} MB = {listed}")
    if "energy_j" not in explanation.absent:
        lines.append(ATTRIBUTION)
    lines += [f"{n} not available: {printable(why)}" for n, why in explanation.absent.items()]
    return "\n".join(" " + line for line in lines)


def _sides(difference: Difference) -> str:
    lines = []
    for name, side in (("before", difference.before), ("after", difference.after)):
        p = side.prediction
        lines.append(f" {name}: {p.title} · {printable(p.provenance.checkpoint)}")
    parts = [
        f"{name} {show(a)} → {show(b)}"
        for name, (a, b) in difference.memory().items()
        if abs(b - a) > 0.005
    ]
    if parts:
        lines.append(f" memory MB: {', '.join(parts)}")
    return "\n".join(lines)


def _energy(energy_j: float | None, whole_j: float | None) -> str:
    if energy_j is None or not whole_j:
        return ""
    return show(energy_j) if abs(energy_j) >= SHORTEST_SHARE * whole_j else "0"


def _change(before_ms: float, after_ms: float, whole_ms: float) -> str:
    """Format a change with its sign; "0" if both times are printed equally."""
    same = format_time(before_ms, whole_ms) == format_time(after_ms, whole_ms)
    return "0" if same else format_change(after_ms - before_ms, whole_ms)


def _share(change_ms: float, before_ms: float) -> str:
    """Format a change relative to the time before; "" if it rounds to 0."""
    share = change_ms / before_ms if before_ms else 0.0
    return _percent(share, "+") if abs(share) >= SHORTEST_PERCENT else ""


def _ratio(value: float | None) -> str:
    return "–" if value is None else _percent(value - 1, "+")


def _percent(share: float, sign: str = "") -> str:
    """Format a share; one that rounds to 0 has no sign."""
    text = f"{share:{sign}.1%}" if abs(share) >= SHORTEST_PERCENT else "0.0%"
    return text.replace("-", "−")
