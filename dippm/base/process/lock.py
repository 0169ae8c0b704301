"""A file lock, which the kernel releases with its last holder, also after kill -9."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

GRACE_S = 2.0
"""Time in s that the children of a killed process need to end."""


class HeldError(Exception):
    """Another process holds a lock.

    Attributes:
        owner: text that the holder wrote about itself; "" without one.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class Lock:
    """A held lock; closing it releases it.

    Args:
        path: path of the lock file, which every user may lock; links are not followed.
        owner: text for other processes that want the lock.
        passing: whether the file is removed with the lock.

    Raises:
        HeldError: if another process holds it.
        OSError: if the file cannot be opened.

    Attributes:
        handle: file descriptor, which a worker may inherit.
        path: path of the lock file.
    """

    def __init__(self, path: Path, owner: str, *, passing: bool = False) -> None:
        self.path, self._passing = path, passing
        self.handle = _hold(path)
        while not _is_at(self.handle, path):  # its holder removed it just before the release
            os.close(self.handle)
            self.handle = _hold(path)
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, f"{owner}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock, and remove the file of a passing one."""
        if self._passing:
            self.path.unlink(missing_ok=True)
        os.close(self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(path: Path) -> int:
    handle = _open(path)
    if _acquire(handle, GRACE_S):
        return handle
    owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
    os.close(handle)
    raise HeldError(owner)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another process was faster
            continue
        os.fchmod(handle, 0o666)
        return handle


def _acquire(handle: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
