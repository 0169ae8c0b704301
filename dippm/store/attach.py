"""Attach folders of runs to the store, in a process of its own.

    python -m dippm.store.attach FOLDER [--store URI]
    python -m dippm.store.attach --all

Who closes a run inside a workload starts this, so that the workload never imports the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dippm.errors import DippmError, RunError
from dippm.store.folder import START, read_folder, spool
from dippm.store.record import Start
from dippm.store.runs import RunStore, open_store
from dippm.store.stored import StoredRun

MARK = "attached.json"
SILENT_S = 15.0
"""A run without an end whose process is gone is lost once it was silent for so long."""
KEEP_S = 3600.0
"""How long a folder stays after it was attached, for whoever still reads it."""
STAY = "They wait in the spool; the next `dippm runs` attaches them."
USAGE = "usage: python -m dippm.store.attach (FOLDER | --all) [--store URI]\n"


@dataclass(slots=True)
class Replayed:
    """What became of the folders of a spool.

    Attributes:
        attached: now in a store.
        waiting: still in the spool, with the reason.
        running: runs that go on.
    """

    attached: list[StoredRun] = field(default_factory=list)
    waiting: dict[Path, str] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)


def attach(folder: Path, store: str | None = None) -> StoredRun:
    """Attach one folder and mark it; the store is the one given, else the one it was meant for.

    Raises:
        RunError: if it holds no run.
        StoreError: if the store cannot be reached or written.
    """
    opened = open_store(store or read_folder(folder).start.store or None)
    return _attach(opened, folder)


def attached_to(folder: Path) -> str:
    """Return the address of the store that a folder was attached to last, "" if it waits."""
    try:
        return str(json.loads((folder / MARK).read_bytes())["store"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def attach_all(root: Path | None = None, store: str | None = None) -> Replayed:
    """Attach every run of a spool that has ended, each to the store that it was meant for.

    Args:
        root: the spool, by default that of the user.
        store: where runs go that were meant for no store.
    """
    replayed = Replayed()
    stores: dict[str, RunStore | DippmError] = {}
    for folder in sorted((root or spool()).glob(f"*/{START}")):
        _replay(folder.parent, store, stores, replayed)
    return replayed


def _replay(
    folder: Path,
    store: str | None,
    stores: dict[str, RunStore | DippmError],
    replayed: Replayed,
) -> None:
    if (folder / MARK).exists():
        _remove_old(folder)
        return
    try:
        recorded = read_folder(folder)
        if recorded.end is None and _goes_on(folder, recorded.start):
            replayed.running.append(folder)
            return
        address = recorded.start.store or store or ""
        if address not in stores:
            stores[address] = _opened(address)
        opened = stores[address]
        if isinstance(opened, DippmError):
            raise opened
        replayed.attached.append(_attach(opened, folder))
    except DippmError as error:
        replayed.waiting[folder] = error.message


def _opened(address: str) -> RunStore | DippmError:
    try:
        return open_store(address or None)
    except DippmError as error:
        return error


def _attach(store: RunStore, folder: Path) -> StoredRun:
    run = store.attach(folder)
    beside = folder / f".{MARK}.{os.getpid()}"
    with contextlib.suppress(OSError):  # then it is attached again, which changes nothing
        beside.write_text(json.dumps({"store": store.place.shown(), "uuid": run.uuid}))
        os.replace(beside, folder / MARK)
    return run


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - (folder / MARK).stat().st_mtime > KEEP_S:
            shutil.rmtree(folder)


def _goes_on(folder: Path, start: Start) -> bool:
    """Return whether a run without an end may still be going on."""
    written = max(path.stat().st_mtime for path in folder.iterdir())
    if time.time() - written < SILENT_S:
        return True
    if start.host and start.host != os.uname().nodename:
        return True  # whoever is on that machine knows
    return bool(start.pid) and _started_at(start.pid) <= start.at.wall_ns / 1e9 + 1


def _started_at(pid: int) -> float:
    """Return when a process started, in seconds since 1970; infinity if there is none."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return float("inf")


def main(words: Sequence[str]) -> int:
    """Attach as the command line says: 0 attached, 1 kept in the spool, 2 made no sense."""
    given, store = list(words), None
    if "--store" in given[:-1]:
        place = given.index("--store")
        store = given[place + 1]
        del given[place : place + 2]
    if len(given) != 1:
        sys.stderr.write(USAGE)
        return 2
    try:
        if given[0] == "--all":
            waiting = attach_all(store=store).waiting
            if waiting:
                raise RunError("; ".join(waiting.values()), STAY)
        else:
            attach(Path(given[0]), store)
    except DippmError as error:
        sys.stderr.write(f"attach: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
