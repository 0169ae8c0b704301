"""Locks: one collector per output folder and per GPU of a host.

They are `flock`s, which the kernel releases with the last process that holds them, so no stale lock
remains after `kill -9`. A worker inherits the lock of its device, so that a device stays locked as
long as a process measures on it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dataset.collect.errors import CollectError, LockedError
from dippm.base.process import lock
from dippm.measure.sources.calls import NotHere

DIRECTORY = "DIPPM_LOCK_DIR"
DEFAULT_DIRECTORY = Path("/tmp/dippm-locks")  # one place for all users of a host


class Lock(lock.Lock):
    """A held lock; closing it releases it.

    Args:
        path: path of the lock file.
        what: description of the protected resource, for the message.
        passing: whether the file is removed with the lock.

    Raises:
        LockedError: if another process holds it, naming the process.
    """

    def __init__(self, path: Path, what: str, *, passing: bool = False) -> None:
        try:
            super().__init__(path, f"pid {os.getpid()}", passing=passing)
        except lock.HeldError as error:
            raise LockedError(
                f"{what} is in use by another collector ({error.owner or 'unknown process'})",
                f"Wait for it or stop it; the lock is {path}.",
            ) from error


def lock_folder(folder: Path) -> Lock:
    """Lock an output folder.

    Raises:
        LockedError: if another collector writes there.
    """
    return Lock(folder / "collector.lock", f"folder {folder}", passing=True)


def lock_device(device: str) -> Lock:
    """Lock a device of this host, for all output folders.

    Raises:
        LockedError: if another collector measures on it.
        CollectError: if the folder of locks is not usable.
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
    """Return an identifier of the hardware: the UUID of the whole GPU, or "cpu".

    Slices of one GPU share power and clocks, so they share its lock. Without NVML it is the
    device's name in CUDA_VISIBLE_DEVICES, or its index.
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
