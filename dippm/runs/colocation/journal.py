"""The journal: what was done to devices, written before it is done, so that a crash can be undone.

An entry is a JSON file of one `seated`: who made it, the slices and servers that it makes. It goes
when all of it is undone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dippm.errors import CollocationError

VERSION = 1
PATTERN = "seats-*.json"


class Owner(NamedTuple):
    """The process that made an entry, told apart from any other.

    Attributes:
        pid: its number.
        started: clock ticks after boot.
        host: name of the machine.
        boot: identifier of the boot: devices forget all at the next one.
    """

    pid: int
    started: int
    host: str
    boot: str

    @classmethod
    def here(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(pid, started(pid) or 0, os.uname().nodename, boot())

    def lives(self) -> bool:
        """Whether it runs on this machine, now."""
        return self.boot == boot() and started(self.pid) == self.started


class Entry:
    """What one `seated` did, or is about to do.

    Attributes:
        path: of its file.
        owner: who did it.
        slices: MIG slices, as `slices.CreatedSlice.as_json` gives them.
        servers: MPS servers, as `mps.Server.as_json` gives them.
    """

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self.slices: list[dict[str, Any]] = []
        self.servers: list[dict[str, Any]] = []

    @classmethod
    def new(cls, journal: Path) -> Entry:
        """Return an entry of this process, not written yet.

        Raises:
            CollocationError: if the folder cannot be made.
        """
        try:
            journal.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(journal, error) from error
        return cls(journal / f"seats-{os.urandom(8).hex()}.json", Owner.here())

    @classmethod
    def read(cls, path: Path) -> Entry:
        """Return a written entry.

        Raises:
            CollocationError: if it is none.
        """
        try:
            held = json.loads(path.read_bytes())
            if held["version"] != VERSION:
                raise ValueError(f"version {held['version']!r}")
            entry = cls(path, Owner(**held["owner"]))
            entry.slices, entry.servers = list(held["slices"]), list(held["servers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "Look at the file; what it names has to be undone by hand."
            raise CollocationError(f"{path} cannot be read: {error}", hint) from error
        return entry

    def write(self) -> None:
        """Write it whole, and wait until the disk has it.

        Raises:
            CollocationError: if it cannot be written; then nothing may be done to a device.
        """
        held = {
            "version": VERSION,
            "owner": self.owner._asdict(),
            "slices": self.slices,
            "servers": self.servers,
        }
        beside = self.path.with_suffix(".new")
        try:
            with beside.open("w", encoding="utf-8") as file:
                json.dump(held, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise _unwritable(self.path.parent, error) from error

    def remove(self) -> None:
        """Forget it: all is undone."""
        with contextlib.suppress(OSError):  # undoing once more does no harm
            self.path.unlink(missing_ok=True)


def entries(journal: Path) -> Iterator[Path]:
    """Yield the files of a journal, newest first; none if the folder is missing.

    What was made last is undone first.
    """
    dated = []
    for path in journal.glob(PATTERN):
        with contextlib.suppress(FileNotFoundError):  # its owner has just ended
            dated.append((path.stat().st_mtime_ns, path))
    yield from (path for _, path in sorted(dated, reverse=True))


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks after boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot() -> str:
    """Return the identifier of this boot of the machine, "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _unwritable(folder: Path, error: OSError) -> CollocationError:
    return CollocationError(
        f"the journal {folder} cannot be written: {error.strerror or error}",
        "Nothing was done to a device. Give another folder: journal=... .",
    )
