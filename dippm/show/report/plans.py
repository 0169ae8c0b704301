"""Plans as a table and as JSON."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.runs.plans.options import PlanOutcome
from dippm.runs.plans.plan import Plan
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.run_configs import arguments_of, resolve_command
from dippm.runs.plans.scheduler import Chosen
from dippm.runs.plans.status import WORDS
from dippm.runs.plans.workload import workloads

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
    }


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
