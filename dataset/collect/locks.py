"""Locks: one collector for each output folder, one for each GPU of a host.

They are `flock`s: the kernel drops them with the last process that holds them, so nothing stale
remains after `kill -9`. A worker inherits the lock of its device, so that a device stays locked
as long as anything measures on it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path
from types import TracebackType

from dataset.collect.errors import CollectError, LockedError
from dippm.measure.sources.calls import NotHere

DIRECTORY = "DIPPM_LOCK_DIR"
DEFAULT_DIRECTORY = Path("/tmp/dippm-locks")  # one place for all users of a host
GRACE_S = 2.0
"""A worker whose supervisor was killed needs a moment to follow it."""


class Lock:
    """A held lock; closing it lets go.

    Args:
        path: of the lock file.
        what: it protects, for the message.
        passing: whether the file is removed with the lock.

    Raises:
        LockedError: if somebody else holds it; names the process.

    Attributes:
        handle: file descriptor, to be inherited by a worker.
        path: of the lock file.
    """

    def __init__(self, path: Path, what: str, *, passing: bool = False) -> None:
        self.path, self._passing = path, passing
        self.handle = _hold(path, what)
        while not _is_at(self.handle, path):  # its holder removed it just before it let go
            os.close(self.handle)
            self.handle = _hold(path, what)
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, f"pid {os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let go; the file of a passing lock is removed."""
        if self._passing:
            self.path.unlink(missing_ok=True)
        os.close(self.handle)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def lock_folder(folder: Path) -> Lock:
    """Hold an output folder.

    Raises:
        LockedError: if another collector writes there.
    """
    return Lock(folder / "collector.lock", f"folder {folder}", passing=True)


def lock_device(device: str) -> Lock:
    """Hold a device of this host, whatever folder the rows go to.

    Raises:
        LockedError: if another collector measures on it.
        CollectError: if the folder of locks cannot be used.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", device_key(device))
    folder = Path(os.environ.get(DIRECTORY) or DEFAULT_DIRECTORY)
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        return Lock(folder / f"{name}.lock", f"device {device} ({name})")
    except OSError as error:
        raise CollectError(
            f"locks cannot be kept in {folder}: {error.strerror}",
            f"Name a folder that all users of this host can write to in {DIRECTORY}.",
        ) from error


def device_key(device: str) -> str:
    """Return what identifies the hardware: the UUID of the whole GPU, or "cpu".

    Slices of one GPU share power and clocks, so they share its lock. Without NVML it is the name
    that CUDA_VISIBLE_DEVICES gives the device, or its index.
    """
    from dippm.measure.sources.nvml_session import Session, locate

    kind, _, index = device.partition(":")
    if kind != "cuda":
        return kind
    try:
        nvml = Session.open()
    except NotHere:
        return f"gpu-{_visible(int(index or 0))}"
    try:
        uuid = nvml.nvmlDeviceGetUUID(locate(nvml, f"cuda:{index or 0}").board)
    except (NotHere, nvml.NVMLError) as error:
        raise CollectError(
            f"there is no {device}: {error}", "`nvidia-smi -L` lists the GPUs of this host."
        ) from error
    finally:
        Session.close()
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _visible(index: int) -> str:
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return names[index] if index < len(names) and names[index] else str(index)


def _hold(path: Path, what: str) -> int:
    handle = _open(path)
    if _acquire(handle, GRACE_S):
        return handle
    owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
    os.close(handle)
    raise LockedError(
        f"{what} is in use by another collector ({owner or 'unknown process'})",
        f"Wait for it or stop it; the lock is {path}.",
    )


def _open(path: Path) -> int:
    """Open a lock file that every user may lock; links are not followed."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another collector was faster
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
