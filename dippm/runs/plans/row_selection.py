"""Selection of a plan's rows to run, and checks that they can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dippm.errors import DippmError, PlanError
from dippm.runs.plans.assumed import AssumedBoards, check_sharing
from dippm.runs.plans.row import PlanRow, Process
from dippm.runs.plans.run_configs import arguments_of, resolve_command
from dippm.runs.plans.workload import Workload, shares_a_device
from dippm.runs.tracking.listeners import check_names, sources_of, split_profiler
from dippm.runs.tracking.profilers import check_profiler
from dippm.runs.tracking.run_config import FIRST_PROFILED

MOST_SHOWN = 10


def select_rows(
    workload: Workload, *, rerun_failed: bool = False
) -> tuple[tuple[PlanRow, ...], tuple[str, ...]]:
    """Return the rows of a workload to run, and remarks on skipped ones.

    A row that shares a device with one of them is repeated too: alone, or without it, either would
    be a different measurement.

    Raises:
        PlanError: if a row is being run by another scheduler of this machine.
    """
    remarks = []
    again = ("FAILED", "TIMEOUT") if rerun_failed else ()
    wanted = []
    for row in workload.rows:
        if row.status.word == "RUNNING":
            process = Process.parse(row.status.detail)
            if process is not None and not process.here:
                remarks.append(
                    f"row {row.number} is left alone: it runs on {process.host}; "
                    f"`dippm plan recover` there says if it does not"
                )
                continue
            if process is not None and process.goes_on:
                hint = f"Wait for process {process.pid}, or end it."
                raise PlanError(f"row {row.number} is being run by another scheduler", hint)
            wanted.append(row)
        elif row.status.word in ("PENDING", "INTERRUPTED", "LOST", *again):
            wanted.append(row)
    neighbours = [
        row
        for row in workload.rows
        if row.status.word not in ("RUNNING",)
        and row not in wanted
        and any(shares_a_device(row, other) for other in wanted)
    ]
    return tuple(row for row in workload.rows if row in wanted or row in neighbours), tuple(remarks)


def metrics_of(row: PlanRow) -> tuple[str, ...]:
    """Return the sources of a row's listeners.

    Raises:
        ListenerError: if a listener cannot work here; `UnknownNameError` if it does not exist.
    """
    listeners, _ = split_profiler(row.listeners)
    return sources_of(listeners, devices=row.devices or ("0",))


def _profiler_works(row: PlanRow, plan_folder: Path | None) -> None:
    """Raise if the row's profiler cannot work here."""
    _, profiler = split_profiler(row.listeners)
    if profiler:
        command = resolve_command(row.file, arguments_of(row), plan_folder)
        check_profiler(profiler, FIRST_PROFILED, command, metrics_of(row))


def check(rows: Sequence[PlanRow], plan: Path | None, assumed: AssumedBoards | None = None) -> None:
    """Check rows before anything is started.

    Args:
        rows: rows to run.
        plan: path of the plan, None for a row of a command line.
        assumed: GPUs of another machine that they are meant for; None for those of this machine.

    Raises:
        PlanError: if rows cannot be run, naming each with its reason.
        DippmError: the error itself, if there is only one such row.
    """
    known: dict[object, DippmError | None] = {}
    plan_folder = plan.parent if plan else None
    found = {row.number: _find_error(row, rows, plan_folder, known, assumed) for row in rows}
    errors = {number: error for number, error in found.items() if error is not None}
    if not errors:
        return
    numbers = list(errors)
    first = errors[numbers[0]]
    lines = [f"row {number}: {errors[number].message}" for number in numbers[:MOST_SHOWN]]
    if len(numbers) > MOST_SHOWN:
        lines.append(f"and {len(numbers) - MOST_SHOWN} more rows")
    if len(numbers) == 1:
        raise type(first)(lines[0], first.hint) from first
    raise PlanError("\n".join(lines), first.hint) from first


def _find_error(
    row: PlanRow,
    rows: Sequence[PlanRow],
    plan_folder: Path | None,
    known: dict[object, DippmError | None],
    assumed: AssumedBoards | None,
) -> DippmError | None:
    """Return why a row cannot be run; results in `known` are reused."""
    group = row.key, row.devices
    ways = sorted(other.sharing for other in rows if (other.key, other.devices) == group)
    steps: dict[object, Callable[[], object]] = {
        ("file", row.file): lambda: resolve_command(row.file, arguments_of(row), plan_folder)
    }
    if assumed is None:
        steps |= {
            ("listeners", row.listeners, row.devices): lambda: metrics_of(row),
            ("profiler", row.listeners, row.file): lambda: _profiler_works(row, plan_folder),
            ("devices", row.devices, *ways): lambda: check_sharing(row.devices, ways),
        }
    else:
        steps |= {
            ("listeners", row.listeners): lambda: check_names(split_profiler(row.listeners)[0]),
            ("devices", row.devices, *ways): lambda: assumed.check_sharing(row.devices, ways),
        }
    for what, step in steps.items():
        if what not in known:
            known[what] = _catch_error(step)
        if (error := known[what]) is not None:
            return error
    return None


def _catch_error(step: Callable[[], object]) -> DippmError | None:
    try:
        step()
    except DippmError as error:
        return error
    return None
