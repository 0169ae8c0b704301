"""Read a plan from its file, and what a status file beside it says."""

from __future__ import annotations

from pathlib import Path

from dippm.errors import DippmError, PlanError
from dippm.runs.plans.plan import TABLES, Plan, is_plan
from dippm.runs.plans.row import Row
from dippm.runs.plans.sweep import read_sweep
from dippm.runs.plans.table import read_table

LARGEST_BYTES = 64 << 20


def read_plan(path: Path) -> Plan:
    """Read a plan: a table of radT's columns, or a sweep in YAML.

    Raises:
        PlanError: if it cannot be read or makes no sense; `UnknownNameError` for a name in it.
    """
    if not is_plan(path.name):
        hint = "A plan is a .csv, .yml or .yaml file."
        raise PlanError(f"{path} is no plan by its name", hint)
    path, data = _read(path)
    try:
        table = path.suffix.casefold() in TABLES
        rows, slots = read_table(data) if table else (read_sweep(data), {})
        plan = Plan(path, data, rows, slots)
    except DippmError as error:
        raise _of(path, error) from error
    if not plan.status_file.exists():
        return plan
    try:
        noted, _ = read_table(_read(plan.status_file)[1])
    except DippmError as error:
        hint = "Mend it, or remove it to go on without what it says."
        raise PlanError(f"{plan.status_file} cannot be read: {error}", hint) from error
    return plan._replace(rows=with_status(plan.rows, noted))


def with_status(rows: tuple[Row, ...], noted: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return rows with the status of rows that ask for the same, the first one's of the first."""
    waiting: dict[tuple[object, ...], list[Row]] = {}
    for row in reversed(noted):
        waiting.setdefault(row.content, []).append(row)
    found = []
    for row in rows:
        same = waiting.get(row.content)
        last = same.pop() if same else row
        found.append(row._replace(status=last.status, run=last.run))
    return tuple(found)


def _read(path: Path) -> tuple[Path, bytes]:
    try:
        path = path.resolve(strict=True)
        if not path.is_file():
            raise PlanError(f"{path} is no file", "Name the file of a plan.")
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"the plan {path} cannot be read: {reason}", "Name a file that you may read."
        ) from error
    if len(data) > LARGEST_BYTES:
        raise PlanError(
            f"{path} is larger than {LARGEST_BYTES >> 20} MiB: no plan is",
            "Name the file of a plan.",
        )
    return path, data


def _of(path: Path, error: DippmError) -> DippmError:
    """Return an error that names the plan."""
    return type(error)(f"{path.name}: {error.message}", error.hint)
