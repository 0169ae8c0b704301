"""Attach folders of runs to the store, in a process of its own.

    python -m dippm.runs.store.attach FOLDER [--store URI]
    python -m dippm.runs.store.attach --all
    python -m dippm.runs.store.attach SPOOL --key KEY --turn DESCRIPTOR

Who keeps a run becomes the last of these when nothing is measured any more, so that no workload
imports the store and no measurement has it beside it; see `dippm.runs.store.attach_lock`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dippm.errors import DippmError, RunError
from dippm.runs.store.attach_lock import (
    PATIENCE_S,
    claim_turn,
    is_any_live,
    requested_folders,
    wait_until_quiet,
)
from dippm.runs.store.folder import SAMPLES, START, read_folder, spool
from dippm.runs.store.record import Start
from dippm.runs.store.runs import RunStore, open_store
from dippm.runs.store.stored_run import StoredRun

MARK = "attached.json"
SILENT_S = 15.0
"""A run without an end whose process is gone is lost once it was silent for so long."""
KEEP_S = 3600.0
"""How long a folder stays after it was attached, for whoever still reads it."""
BATCH, BATCH_BYTES = 50, 2**25
"""Runs, and bytes of their samples, that are attached together."""
BATCH_BESIDE = 8
"""Runs in a transaction at the lowest priority: MLflow in a workload waits 20 s for a file, and
where processors are busy 10 ms of work can take a second."""
STAY = "They wait in the spool; the next `dippm runs` attaches them."
USAGE = "usage: python -m dippm.runs.store.attach (FOLDER | --all) [--store URI]\n"


@dataclass(slots=True)
class AttachResult:
    """What became of the folders of a spool.

    Attributes:
        attached: now in a store.
        waiting: still in the spool, with the reason.
        running: runs that go on.
        attaching: those of `waiting` that somebody else attaches now, with the store's address.
    """

    attached: list[StoredRun] = field(default_factory=list)
    waiting: dict[Path, str] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)
    attaching: dict[Path, str] = field(default_factory=dict)


def attach(folder: Path, store: str | None = None) -> StoredRun:
    """Attach one folder and mark it; the store is the one given, else the one it was meant for.

    Raises:
        RunError: if it holds no run.
        StoreError: if the store cannot be reached or written.
    """
    opened = open_store(store or read_folder(folder).start.store or None)
    run = opened.attach(folder)
    _mark(folder, opened, run)
    return run


def attached_to(folder: Path) -> str:
    """Return the address of the store that a folder was attached to last, "" if it waits."""
    try:
        return str(json.loads((folder / MARK).read_bytes())["store"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def attach_all(root: Path | None = None, store: str | None = None) -> AttachResult:
    """Attach every run of a spool that has ended, each to the store that it was meant for.

    Args:
        root: the spool, by default that of the user.
        store: where runs go that were meant for no store.
    """
    replayed = AttachResult()
    meant: dict[str, list[Path]] = {}
    for file in sorted((root or spool()).glob(f"*/{START}")):
        folder = file.parent
        if _is_done(folder):
            continue
        try:
            recorded = read_folder(folder)
            if recorded.end is None and _goes_on(folder, recorded.start):
                replayed.running.append(folder)
            else:
                meant.setdefault(recorded.start.store or store or "", []).append(folder)
        except DippmError as error:
            replayed.waiting[folder] = error.message
    for address, folders in meant.items():
        try:
            opened = open_store(address or None)
        except DippmError as error:
            replayed.waiting |= dict.fromkeys(folders, error.message)
            continue
        for batch in _batches(folders):
            _attach_many(opened, batch, replayed)
    return replayed


def serve(root: Path, key: str, turn: int) -> None:
    """Attach what shall go to the store of this environment, also what comes meanwhile.

    Args:
        root: the spool.
        key: of the store, as `turn.request_attach` gave it in this environment.
        turn: as `claim_turn` gave it.

    Raises:
        RunError: if some could not be attached; the next turn tries them again.
    """
    end = time.monotonic() + PATIENCE_S
    replayed = AttachResult()
    tried: set[Path] = set()  # marks cannot be written on a full disk

    def left() -> list[Path]:
        return [f for f in requested_folders(root, key) if f not in tried and not _is_done(f)]

    mine: int | None = turn
    while mine is not None:
        while folders := left():
            batch = next(_batches(folders, BATCH_BESIDE))
            tried.update(batch)
            _attach_batch(batch, replayed)
            if is_any_live():
                wait_until_quiet(end)
        os.close(mine)
        # Who asked before that found it our turn and went; who asks now takes it.
        mine = claim_turn(root, key) if left() else None
    if replayed.waiting:
        raise RunError("; ".join(replayed.waiting.values()), STAY)


def _is_done(folder: Path) -> bool:
    if not (folder / MARK).exists():
        return False
    _remove_old(folder)
    return True


def _attach_batch(folders: list[Path], replayed: AttachResult) -> None:
    """Attach folders that are meant for one store."""
    try:
        opened = open_store(read_folder(folders[0]).start.store or None)
    except DippmError as error:
        replayed.waiting |= dict.fromkeys(folders, error.message)
        return
    _attach_many(opened, folders, replayed)


def _attach_many(
    store: RunStore, folders: list[Path], replayed: AttachResult, *, wait: bool = False
) -> None:
    outcomes = store.attach_many(folders, wait=wait)
    for folder in folders:
        outcome = outcomes.get(folder)
        if outcome is None:
            replayed.waiting[folder] = "somebody else attaches it"
            replayed.attaching[folder] = store.location.uri
        elif isinstance(outcome, DippmError):
            replayed.waiting[folder] = outcome.message
        else:
            _mark(folder, store, outcome)
            replayed.attached.append(outcome)


def _batches(folders: list[Path], most: int = BATCH) -> Iterator[list[Path]]:
    """Yield folders, as many as can be in memory, and in one transaction, at once."""
    batch: list[Path] = []
    left = BATCH_BYTES
    for folder in folders:
        with contextlib.suppress(OSError):
            left -= sum(file.stat().st_size for file in folder.glob(SAMPLES))
        if batch and (left < 0 or len(batch) == most):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(folder)
    if batch:
        yield batch


def _mark(folder: Path, store: RunStore, run: StoredRun) -> None:
    beside = folder / f".{MARK}.{os.getpid()}"
    with contextlib.suppress(OSError):  # then it is attached again, which changes nothing
        beside.write_text(json.dumps({"store": store.location.shown(), "uuid": run.uuid}))
        os.replace(beside, folder / MARK)


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
    given = list(words)
    store, key, turn = (_option(given, name) for name in ("--store", "--key", "--turn"))
    if len(given) != 1:
        sys.stderr.write(USAGE)
        return 2
    try:
        if given[0] == "--all":
            waiting = attach_all(store=store).waiting
            if waiting:
                raise RunError("; ".join(waiting.values()), STAY)
        elif key is not None and turn is not None:
            serve(Path(given[0]), key, int(turn))
        else:
            attach(Path(given[0]), store)
    except DippmError as error:
        sys.stderr.write(f"attach: {error.message}\n")
        return 1
    return 0


def _option(given: list[str], name: str) -> str | None:
    """Take an option and its value out of words; None if it is not there."""
    if name not in given[:-1]:
        return None
    place = given.index(name)
    value = given[place + 1]
    del given[place : place + 2]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
