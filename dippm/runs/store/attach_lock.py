"""Locks for attaching runs of a spool: one process per store, and not during other runs.

Work beside a measurement would disturb it. So the sidecar of a run holds a shared lock, which the
kernel releases however that process ends, and a process that attaches waits until no one on this
machine holds it. A folder is marked as requested before its sidecar tries the lock of the store;
the process that holds that lock attaches the folder too, and the others exit.

    $DIPPM_SPOOL/<uuid>/.attach.key    hash of the requested store: addresses may hold passwords
    $DIPPM_SPOOL/.attach-<key>.lock    lock of the attaching process, one per store
    /tmp/dippm-live.lock               shared lock of all sidecars of this machine

Standard library only: sidecars import this.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from dippm.errors import StoreError
from dippm.runs.store.folder import START

KEY = ".attach.key"
LIVE_VARIABLE = "DIPPM_LIVE"
LIVE = "/tmp/dippm-live.lock"
"""One file for all users, since they share the CPU; containers may bind another one."""
QUIET_S = 2.0
"""Required pause without runs: bridges the gaps between the runs of a loop or plan."""
LOOK_S = 0.25
PATIENCE_S = 1800.0
"""After this time runs are attached during other runs, at the lowest priority."""
TRIES = 20


def hold_live() -> int | None:
    """Mark a run as in progress until the descriptor is closed or this process ends.

    Returns:
        A descriptor that exec closes; None if the lock cannot be taken.
    """
    live = _live()
    if live is None:
        return None
    for _ in range(TRIES):  # `is_any_live` holds it for a moment
        with contextlib.suppress(OSError):
            fcntl.flock(live, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return live
        time.sleep(0.001)
    os.close(live)
    return None


def is_any_live() -> bool:
    """Return whether a run is in progress on this machine."""
    live = _live()
    if live is None:
        return False
    try:
        fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return False
    finally:
        os.close(live)
    return False


def wait_until_quiet(end: float, is_live: Callable[[], bool] = is_any_live) -> None:
    """Wait until no run has been in progress for `QUIET_S`.

    Args:
        end: time of `time.monotonic()` after which to stop waiting.
        is_live: returns whether a run is in progress.
    """
    quiet_since = time.monotonic()
    while (now := time.monotonic()) < end:
        if is_live():
            quiet_since = now
        elif now - quiet_since >= QUIET_S:
            return
        time.sleep(LOOK_S)


def request_attach(folder: Path) -> str:
    """Request attaching a run to the store of this environment; return the store's key.

    Raises:
        OSError: if the folder cannot be read or written.
        ValueError: if the folder holds no run.
    """
    from dippm.runs.store.location import ARTIFACTS_VARIABLE, locate_store

    given = str(json.loads((folder / START).read_bytes()).get("store") or "")
    try:
        location = locate_store(given or None)
        words = [location.uri, location.artifacts]
    except StoreError:  # reported when attaching
        words = [given, os.environ.get(ARTIFACTS_VARIABLE)]
    key = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
    (folder / KEY).write_text(key)
    return key


def requested_folders(root: Path, key: str) -> list[Path]:
    """Return the folders of a spool that wait to be attached to a store."""
    found = []
    for file in sorted(root.glob(f"*/{KEY}")):
        with contextlib.suppress(OSError):
            if file.read_text() == key:
                found.append(file.parent)
    return found


def claim_turn(root: Path, key: str) -> int | None:
    """Return the lock descriptor that lets this process attach; None if another one holds it.

    Raises:
        OSError: if the spool cannot be written.
    """
    turn = os.open(root / f".attach-{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(turn)
        return None
    except OSError:  # no locks on this file system: rely on the store's transactions
        pass
    return turn


def lower_priority() -> None:
    """Give all other processes of this machine precedence."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Nice values count only within a session where Linux groups by session.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write("19")


def _live() -> int | None:
    path = os.environ.get(LIVE_VARIABLE) or LIVE
    # It may be another user's file: do not follow links or block on a pipe.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for more in (0, os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | more, 0o644)
    return None
