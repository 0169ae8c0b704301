"""Paths of a plan's lock, status and journal, and atomic writes to the plan."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from dippm.base.process.lock import HeldError, Lock
from dippm.errors import PlanError


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
