"""Attach folders of runs to the store, in a separate process.

    python -m dippm.runs.store.attach FOLDER [--store URI]
    python -m dippm.runs.store.attach --all
    python -m dippm.runs.store.attach SPOOL --key KEY --turn DESCRIPTOR

The sidecar of a run becomes the last of these when nothing is measured any more, so that no
workload imports the store and no measurement runs beside it; see `dippm.runs.store.attach_lock`.
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
"""A run without an end whose process is gone counts as lost after this much silence."""
KEEP_S = 3600.0
"""How long an attached folder stays, for programs that still read it."""
BATCH, BATCH_BYTES = 50, 2**25
"""Most runs, and bytes of their samples, to attach together."""
BATCH_BESIDE = 8
"""Most runs in a transaction at the lowest priority: MLflow in a workload waits 20 s for the file,
and on a busy machine 10 ms of work can take a second."""
STAY = "They wait in the spool; the next `dippm runs` attaches them."
USAGE = "usage: python -m dippm.runs.store.attach (FOLDER | --all) [--store URI]\n"


@dataclass(slots=True)
class AttachResult:
    """The result of attaching the folders of a spool.

    Attributes:
        attached: runs that are now in a store.
        waiting: folders that stay in the spool, with the reason.
        running: folders of runs in progress.
        attaching: folders in `waiting` that another process is attaching, with the store's address.
    """

    attached: list[StoredRun] = field(default_factory=list)
    waiting: dict[Path, str] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)
    attaching: dict[Path, str] = field(default_factory=dict)


def attach(folder: Path, store: str | None = None) -> StoredRun:
    """Attach a folder and mark it; the default store is the one that it was meant for.

    Raises:
        RunError: if the folder holds no run.
        StoreError: if the store cannot be reached or written.
    """
    opened = open_store(store or read_folder(folder).start.store or None)
    run = opened.attach(folder)
    _mark(folder, opened, run)
    return run


def attached_to(folder: Path) -> str:
    """Return the address of the store that holds the run of a folder, "" if there is none."""
    try:
        return str(json.loads((folder / MARK).read_bytes())["store"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def attach_all(root: Path | None = None, store: str | None = None) -> AttachResult:
    """Attach every ended run of a spool, each to the store that it was meant for.

    Args:
        root: folder of the spool, by default that of the user.
        store: store of runs that name none.
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
    """Attach requested folders to the store of this environment, new requests included.

    Args:
        root: folder of the spool.
        key: key of the store, as `attach_lock.request_attach` returned it in this environment.
        turn: descriptor that `claim_turn` returned.

    Raises:
        RunError: if some folders could not be attached; the next process tries them again.
    """
    end = time.monotonic() + PATIENCE_S
    replayed = AttachResult()
    tried: set[Path] = set()  # in memory, since a full disk takes no marks

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
        # A request made before the release found the lock held and left; look for it once more.
        mine = claim_turn(root, key) if left() else None
    if replayed.waiting:
        raise RunError("; ".join(replayed.waiting.values()), STAY)


def _is_done(folder: Path) -> bool:
    if not (folder / MARK).exists():
        return False
    _remove_old(folder)
    return True


def _attach_batch(folders: list[Path], replayed: AttachResult) -> None:
    """Attach folders that are meant for the same store."""
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
    """Yield batches of folders, limited by number and by size in memory."""
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
    partial = folder / f".{MARK}.{os.getpid()}"
    with contextlib.suppress(OSError):  # without a mark it is attached again, which is idempotent
        partial.write_text(json.dumps({"store": store.location.shown(), "uuid": run.uuid}))
        os.replace(partial, folder / MARK)


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - (folder / MARK).stat().st_mtime > KEEP_S:
            shutil.rmtree(folder)


def _goes_on(folder: Path, start: Start) -> bool:
    """Return whether a run without an end may still be in progress."""
    written = max(path.stat().st_mtime for path in folder.iterdir())
    if time.time() - written < SILENT_S:
        return True
    if start.host and start.host != os.uname().nodename:
        return True  # only that machine can tell
    return bool(start.pid) and _started_at(start.pid) <= start.at.wall_ns / 1e9 + 1


def _started_at(pid: int) -> float:
    """Return when a process started, in seconds since 1970; infinity if it does not exist."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return float("inf")


def main(words: Sequence[str]) -> int:
    """Attach as the command line says: 0 attached, 1 kept in the spool, 2 usage error."""
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
    """Remove an option and its value from the words; return None if it is missing."""
    if name not in given[:-1]:
        return None
    place = given.index(name)
    value = given[place + 1]
    del given[place : place + 2]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
