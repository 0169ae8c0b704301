"""The journal of a plan: changes that its scheduler makes to the machine, recorded beforehand.

journal.jsonl   {"scheduler": "host:pid:start"}, {"row": 3, "process": "host:pid:start"},
{"row": 3, "run": uuid, "folder": path}, {"row": 3, "ended": "FINISHED"}
seats-N/        journal of `dippm.runs.colocation` for a workload that is not undone yet
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Self

from dippm.base.process.lock import HeldError, Lock
from dippm.errors import PlanError
from dippm.runs.plans.row import Process

JOURNAL, SEATS = "journal.jsonl", "seats-*"
OF_A_COMMAND = "command-"
"""Prefix of the folder of a single command without a plan."""


class OpenRow(NamedTuple):
    """A row that was started, without a recorded end.

    Attributes:
        row: number of the row.
        process: process that runs it; None if it was never started.
        run: uuid of its run, "" if there is none yet.
        folder: folder of the run, "" if there is none yet.
    """

    row: int
    process: Process | None = None
    run: str = ""
    folder: str = ""


class Journal:
    """Appends to a journal; requires the lock of its plan.

    Args:
        folder: folder of the journal, see `state_folder`.

    Raises:
        OSError: if it cannot be written; then nothing may be started, since it could not be undone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seats = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.folder / JOURNAL, flags, 0o600)
        self.write(scheduler=str(Process.of(os.getpid())))

    def write(self, **event: Any) -> None:
        """Append an event and sync it to disk.

        Raises:
            OSError: if it cannot be written.
        """
        os.write(self._file, json.dumps(event).encode() + b"\n")
        os.fsync(self._file)

    def seats(self) -> Path:
        """Return a new folder for the journal of a workload's allocation."""
        while True:
            self._seats += 1
            path = self.folder / f"seats-{self._seats}"
            with contextlib.suppress(FileExistsError):  # left by a crash, and not undone yet
                path.mkdir()
                return path

    @classmethod
    def of_this_process(cls) -> Self:
        """Open the journal of a process that executes no whole plan: a command, or a job."""
        return cls(state_folders() / f"{OF_A_COMMAND}{os.getpid()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the journal, and remove it if everything has ended."""
        os.close(self._file)
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def is_left(folder: Path) -> bool:
    """Return whether a scheduler ended without closing its journal."""
    return (folder / JOURNAL).exists() and not _scheduler_of(folder).goes_on


def left_open(folder: Path) -> tuple[tuple[OpenRow, ...], tuple[Path, ...]]:
    """Return the rows without a recorded end, and the folders of seats that are not undone."""
    rows: dict[int, OpenRow] = {}
    for event in _events(folder):
        number = event.get("row")
        if number is None:
            continue
        if "ended" in event:
            rows.pop(number, None)
        elif "run" in event:
            if number in rows:
                about = {"run": event["run"], "folder": event.get("folder", "")}
                rows[number] = rows[number]._replace(**about)
        else:
            rows[number] = OpenRow(number, Process.parse(event.get("process", "")))
    return tuple(rows.values()), tuple(sorted(folder.glob(SEATS)))


def _scheduler_of(folder: Path) -> Process:
    found = [event["scheduler"] for event in _events(folder) if "scheduler" in event]
    process = Process.parse(found[-1]) if found else None
    return process or Process("", 0, 0)


def _events(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / JOURNAL).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # torn by a crash
            event = json.loads(line)
            if _is_event(event):
                found.append(event)
    return found


def _is_event(event: Any) -> bool:
    """Return whether an event has the fields that are read."""
    return isinstance(event, dict) and all(
        type(value) is int if name == "row" else isinstance(value, str)
        for name, value in event.items()
    )


# Paths of a plan's lock, status and journal, and atomic writes to the plan.


def state_folders() -> Path:
    """Return the folder in which schedulers of this machine keep their state across crashes."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dippm" / "plans" / os.uname().nodename


def state_folder(plan: Path) -> Path:
    """Return the folder of a plan's scheduler."""
    digest = hashlib.sha256(os.fsencode(plan)).hexdigest()[:12]
    return state_folders() / f"{plan.name}-{digest}"


def lock_plan(plan: Path) -> Lock:
    """Lock a plan against other schedulers.

    Raises:
        PlanError: if another scheduler holds it.
    """
    path = plan.with_name(f".{plan.name}.lock")
    if not os.access(plan.parent, os.W_OK):
        path = state_folder(plan) / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
    owner = f"{os.uname().nodename}, process {os.getpid()}"
    try:
        return Lock(path, owner, passing=True)
    except HeldError as error:
        raise PlanError(
            f"{plan.name} is carried out by another scheduler ({error.owner or 'unknown'})",
            "Wait for it, or interrupt it with Ctrl-C.",
        ) from error
    except OSError as error:
        raise PlanError(
            f"{plan.name} cannot be locked: {error}", "Carry out a copy of it elsewhere."
        ) from error


def may_be_written(path: Path) -> bool:
    """Return whether a file is writable by its mode, which root could ignore."""
    try:
        meant = bool(os.stat(path).st_mode & 0o222)
    except OSError:
        return False
    return meant and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically, also with respect to crashes.

    Raises:
        OSError: if it cannot be written; the old file is unchanged.
    """
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _take_over(path, handle)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _take_over(path: Path, handle: int) -> None:
    """Give a new file the owner and mode of the file that it replaces."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(handle, 0o666 & ~mask)
        return
    with contextlib.suppress(OSError):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
