"""Plans as a table and as JSON."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.runs.plans.options import PlanOutcome
from dippm.runs.plans.plan import Plan
from dippm.runs.plans.row import WORDS, PlanRow
from dippm.runs.plans.run_configs import arguments_of, resolve_command
from dippm.runs.plans.scheduler import Chosen
from dippm.runs.plans.workload import workloads

if TYPE_CHECKING:
    from dippm.runs.plans.predicted import PredictedRows

SHORT = 8
"""Characters of a uuid that `dippm runs` shows."""


def plan_table(rows: Iterable[PlanRow]) -> Table:
    """Return a line per row, in the order of the workloads."""
    table = Table(box=None)
    table.add_column("row", justify="right")
    for name in ("experiment", "workload", "run as", "file", "params", "listeners"):
        table.add_column(name)
    table.add_column("status")
    table.add_column("run")
    for workload in workloads(rows):
        for row, letter in zip(workload.rows, workload.letters, strict=True):
            cells = (
                row.experiment,
                row.workload,
                f"{letter} {row.name}".strip(),
                row.file,
                row.params,
                "+".join(row.listeners) or "-",
                row.status.word + (f" {row.status.detail}" if row.status.word == "FAILED" else ""),
                row.run[:SHORT],
            )
            table.add_row(str(row.number), *map(printable, cells))
    return table


def commands_table(plan: Plan, chosen: Chosen) -> Table:
    """Return the commands of a dry run, a line per row."""
    table = Table(box=None)
    table.add_column("row", justify="right")
    table.add_column("run")
    table.add_column("command")
    for workload, rows in chosen:
        for row in rows:
            words = resolve_command(row.file, arguments_of(row), plan.path.parent)
            cells = (workload.run_name(row), shlex.join(words))
            table.add_row(str(row.number), *map(printable, cells))
    return table


def status_counts(rows: Iterable[PlanRow]) -> str:
    """Return the number of rows by status: "2 finished, 1 failed"."""
    counts = Counter(row.status.word for row in rows)
    return ", ".join(f"{counts[word]} {word.lower()}" for word in WORDS if counts[word])


def outcome_line(outcome: PlanOutcome) -> str:
    """Return the outcome of a plan in a sentence."""
    ran = f"{len(outcome.ran)} of {len(outcome.rows)} rows were run"
    said = ran if outcome.ran or outcome.signal else "nothing was left to run"
    failed = any(
        row.status.word in ("FAILED", "TIMEOUT") and row.number in outcome.skipped
        for row in outcome.rows
    )
    hint = "; --rerun-failed repeats those that failed" if failed else ""
    return f"{said}: {status_counts(outcome.rows)} ({show(outcome.seconds)} s){hint}"


def row_document(row: PlanRow) -> dict[str, Any]:
    """Return a row as JSON."""
    return {
        "row": row.number,
        "experiment": row.experiment,
        "workload": row.workload,
        "name": row.name,
        "status": row.status.word,
        "detail": row.status.detail,
        "run": row.run or None,
        "devices": list(row.devices),
        "collocation": row.sharing,
        "file": row.file,
        "listeners": list(row.listeners),
        "params": row.params,
        "model": row.model,
    }


def predicted_lines(documents: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the rows that share a GPU do to each other, or why it is not known.

    Args:
        documents: of `predicted_document`.
    """
    for found in documents:
        devices = "+".join(found["devices"])
        where = f"workload {found['experiment']}/{found['workload']} on {devices}"
        if found["reason"] is not None:
            yield printable(f"{where} is not predicted: {found['reason']}")
            continue
        yield printable(f"{where}, {found['device']} by {found['sharing']}, predicted:")
        for one in found["processes"]:
            latency, slowdown = _with_range(one, "latency_ms"), _with_range(one, "slowdown")
            yield printable(f" {one['name']:<16} {latency} ms, × {slowdown}")
        if found["why_bounds"]:
            yield printable(f"   bounds: {found['why_bounds']}")
        yield from (f"   will not fit: {printable(why)}" for why in found["misfits"])


def predicted_document(found: PredictedRows) -> dict[str, Any]:
    """Return the prediction of rows that share a GPU as JSON."""
    processes, letters = found.shared.processes if found.shared else (), found.workload.letters
    return {
        "experiment": found.workload.experiment,
        "workload": found.workload.name,
        "devices": list(dict.fromkeys(device for row in found.rows for device in row.devices)),
        "device": found.shared and found.shared.device.name,
        "sharing": found.shared and found.shared.sharing,
        "rows": [row.number for row in found.rows],
        "feasible": found.shared and found.shared.feasible,
        "misfits": list(found.shared.misfits) if found.shared else [],
        "why_bounds": (found.shared and found.shared.why_bounds) or None,
        "processes": [
            {
                "row": row.number,
                "name": letters[found.workload.rows.index(row)],
                "latency_ms": one.latency_ms,
                "latency_ms_low": one.latency.low,
                "latency_ms_high": one.latency.high,
                "slowdown": one.slowdown,
                "slowdown_low": one.slowdown_range.low,
                "slowdown_high": one.slowdown_range.high,
            }
            for row, one in zip(found.rows, processes, strict=False)
        ],
        "reason": found.reason or None,
    }


def _with_range(one: Mapping[str, Any], what: str) -> str:
    low, high = one[f"{what}_low"], one[f"{what}_high"]
    return f"{show(one[what])} ({show(low)} – {show(high)})"


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON."""
    return {"plan": str(plan.path), "rows": [row_document(row) for row in plan.rows]}


def outcome_document(plan: Plan, outcome: PlanOutcome) -> dict[str, Any]:
    """Return the outcome of a plan as JSON."""
    return {
        **plan_document(plan._replace(rows=outcome.rows)),
        "ran": list(outcome.ran),
        "skipped": list(outcome.skipped),
        "interrupted": bool(outcome.signal),
        "seconds": outcome.seconds,
    }
