"""Recover a plan whose scheduler was killed: end its processes, undo its changes, report both."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from dippm.errors import RunError
from dippm.runs.colocation import undo
from dippm.runs.plans.journal import (
    OF_A_COMMAND,
    SEATS,
    OpenRow,
    is_left,
    left_open,
    lock_plan,
    state_folder,
    state_folders,
)
from dippm.runs.plans.row import PlanRow, Process, Status
from dippm.runs.plans.running import AFTER
from dippm.runs.plans.table import StatusWriter, read_plan
from dippm.runs.plans.workload import end_processes_of
from dippm.runs.store.folder import RunFolder, read_folder
from dippm.runs.store.record import End, Moment

PATIENCE_S = 15.0
"""Seconds for the process of a row to end its command by SIGINT, SIGTERM and SIGKILL."""
SIDECAR_S = 3.0
"""Seconds for a sidecar to record the end of a run that lost its owner."""
WHY = "the process that ran it was killed"


def recover(path: Path) -> list[str]:
    """Undo what a killed scheduler of a plan left on this machine, and mark its rows.

    Returns:
        One sentence per action; empty if nothing was left.

    Raises:
        PlanError: if the plan cannot be read, or if a scheduler is executing it.
    """
    plan = read_plan(path)
    with lock_plan(plan.path):
        return recover_held(plan.path)


def recover_held(path: Path) -> list[str]:
    """Recover a plan whose lock is held, as `recover`."""
    folder = state_folder(path)
    rows, _ = left_open(folder)
    said = _end_all(folder)
    said += _mark(path, {row.row: row for row in rows})
    _remove(folder)
    return said


def recover_all() -> list[str]:
    """Undo what killed schedulers and commands of this user left on this machine.

    Rows of their plans are marked when the plan is recovered or executed.
    """
    said = []
    for folder in sorted(state_folders().glob("*")):
        if is_left(folder):
            said += [f"{folder.name}: {sentence}" for sentence in _end_all(folder)]
            if folder.name.startswith(OF_A_COMMAND):
                _remove(folder)
    return said


def _end_all(folder: Path) -> list[str]:
    rows, seats = left_open(folder)
    said = [sentence for row in rows for sentence in _end(row)]
    return [*said, *(sentence for seat in seats for sentence in undo(seat))]


def _remove(folder: Path) -> None:
    """Remove a journal, except what is needed to undo remaining seats."""
    for seat in folder.glob(SEATS):
        with contextlib.suppress(OSError):
            seat.rmdir()
    if not any(folder.glob(SEATS)):
        shutil.rmtree(folder, ignore_errors=True)


def _end(row: OpenRow) -> list[str]:
    """End the process of a row, and everything that its run started."""
    if row.process is not None and row.process.goes_on:
        end = time.monotonic() + PATIENCE_S
        with contextlib.suppress(ProcessLookupError):
            os.kill(row.process.pid, signal.SIGTERM)
        while row.process.goes_on and time.monotonic() < end:
            time.sleep(0.02)
        if row.process.goes_on:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row.process.pid, signal.SIGKILL)
    count = end_processes_of(row.folder) if row.folder else 0
    return [f"row {row.row}: {count} processes of its run were ended"] if count else []


def _mark(path: Path, rows: dict[int, OpenRow]) -> list[str]:
    """Record the status of rows that the plan lists as running."""
    plan, said = read_plan(path), []
    changes = {}
    for row in plan.rows:
        if row.status.word != "RUNNING":
            continue
        process = Process.parse(row.status.detail)
        if process is None or not process.here or process.goes_on:
            continue
        status = _status(row, rows.get(row.number))
        changes[row.number] = (status, row.run)
        said.append(f"row {row.number} is {status}")
    if changes:
        StatusWriter(plan, said.append).write(changes)
    return said


def _status(row: PlanRow, left: OpenRow | None) -> Status:
    """Return the status that the folder of a run records; LOST without one."""
    if left is None or left.run != row.run or not left.folder:
        return Status("LOST")
    folder = Path(left.folder)
    end = time.monotonic() + SIDECAR_S
    try:
        recorded = read_folder(folder)
        while recorded.end is None and time.monotonic() < end:
            time.sleep(0.05)
            recorded = read_folder(folder)
        if recorded.end is None:
            RunFolder(folder).end(End("lost", Moment.now(), error=WHY))
            return Status("LOST")
    except (OSError, RunError):
        return Status("LOST")
    return AFTER.get(recorded.end.status, Status("FAILED", str(recorded.end.exit_code)))
