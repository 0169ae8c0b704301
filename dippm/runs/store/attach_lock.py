"""When the runs of a spool are attached: by one process for each store, beside no other run.

What works beside a measurement is measured with it. So whoever keeps a run holds a lock while it
goes on, which the kernel takes back however that process ends, and whoever attaches waits until
nobody on this machine holds it. A folder that shall be attached says so before anybody looks whose
turn it is; then the one whose turn it is attaches that folder too, and the others can go.

    $DIPPM_SPOOL/<uuid>/.attach.key    for which store, as a number: addresses may hold passwords
    $DIPPM_SPOOL/.attach-<key>.lock    whose turn it is, for each store
    /tmp/dippm-live.lock               shared by all that keep a run, on this machine

Standard library only: what keeps a run imports this.
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
"""One file for all users, since they share the processors; containers may share another."""
QUIET_S = 2.0
"""No run may have gone on for so long: between two runs of a loop or a plan nothing begins."""
LOOK_S = 0.25
PATIENCE_S = 1800.0
"""After this runs are attached although others go on, at the lowest priority."""
TRIES = 20


def hold_live() -> int | None:
    """Say that a run goes on, until the descriptor is closed or this process ends.

    Returns:
        A descriptor that children do not inherit by exec; None if nobody can be told.
    """
    live = _live()
    if live is None:
        return None
    for _ in range(TRIES):  # whoever looks holds it for a moment
        with contextlib.suppress(OSError):
            fcntl.flock(live, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return live
        time.sleep(0.001)
    os.close(live)
    return None


def is_any_live() -> bool:
    """Return whether a run goes on on this machine."""
    live = _live()
    if live is None:
        return False
    try:
        fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(live)
    return False


def wait_until_quiet(end: float, is_live: Callable[[], bool] = is_any_live) -> None:
    """Wait until no run has gone on for `QUIET_S`.

    Args:
        end: moment of `time.monotonic()` after which nothing is waited for.
        is_live: says whether one goes on.
    """
    quiet_since = time.monotonic()
    while (now := time.monotonic()) < end:
        if is_live():
            quiet_since = now
        elif now - quiet_since >= QUIET_S:
            return
        time.sleep(LOOK_S)


def request_attach(folder: Path) -> str:
    """Say that a run shall be attached to the store of this environment; return that store's key.

    Raises:
        OSError: if the folder cannot be read or written.
        ValueError: if it holds no run.
    """
    from dippm.runs.store.location import ARTIFACTS_VARIABLE, locate_store

    given = str(json.loads((folder / START).read_bytes()).get("store") or "")
    try:
        location = locate_store(given or None)
        words = [location.uri, location.artifacts]
    except StoreError:  # who attaches it says why
        words = [given, os.environ.get(ARTIFACTS_VARIABLE)]
    key = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
    (folder / KEY).write_text(key)
    return key


def requested_folders(root: Path, key: str) -> list[Path]:
    """Return the folders of a spool that shall be attached to a store."""
    found = []
    for file in sorted(root.glob(f"*/{KEY}")):
        with contextlib.suppress(OSError):
            if file.read_text() == key:
                found.append(file.parent)
    return found


def claim_turn(root: Path, key: str) -> int | None:
    """Return the descriptor of the lock by which this process attaches; None if another one does.

    Raises:
        OSError: if the spool cannot be written.
    """
    turn = os.open(root / f".attach-{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(turn)
        return None
    except OSError:  # a file system without locks: the store's own transactions are left
        pass
    return turn


def lower_priority() -> None:
    """Let everybody else on this machine go first."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Priorities count inside of a session where Linux shares out by sessions.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write("19")


def _live() -> int | None:
    path = os.environ.get(LIVE_VARIABLE) or LIVE
    # It may be another user's, and whatever lies there must not be waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for more in (0, os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | more, 0o644)
    return None
