"""The journal of changes to devices, recorded beforehand so that a crash can be undone.

An entry is the JSON file of one `seated`: its owner, its slices and its servers. It is removed when
all of them are undone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dippm.errors import CollocationError

VERSION = 1
PATTERN = "seats-*.json"


class Owner(NamedTuple):
    """The process that owns an entry, uniquely identified.

    Attributes:
        pid: process id.
        started: start in clock ticks after boot.
        host: name of the machine.
        boot: id of the boot: a reboot resets all devices.
    """

    pid: int
    started: int
    host: str
    boot: str

    @classmethod
    def here(cls) -> Owner:
        """Return the current process."""
        pid = os.getpid()
        return cls(pid, start_ticks(pid) or 0, os.uname().nodename, boot())

    def lives(self) -> bool:
        """Whether it is running on this machine now."""
        return self.boot == boot() and start_ticks(self.pid) == self.started


class Entry:
    """The changes that one `seated` has made, or is about to make.

    Attributes:
        path: path of its file.
        owner: process that makes the changes.
        slices: MIG slices, as `CreatedSlice.as_json` returns them.
        servers: MPS servers, as `mps.Server.as_json` returns them.
    """

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self.slices: list[dict[str, Any]] = []
        self.servers: list[dict[str, Any]] = []

    @classmethod
    def new(cls, journal: Path) -> Entry:
        """Return an unwritten entry of this process.

        Raises:
            CollocationError: if the folder cannot be created.
        """
        try:
            journal.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(journal, error) from error
        return cls(journal / f"seats-{os.urandom(8).hex()}.json", Owner.here())

    @classmethod
    def read(cls, path: Path) -> Entry:
        """Read an entry.

        Raises:
            CollocationError: if the file is not a valid entry.
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
        """Write the entry atomically and sync it to disk.

        Raises:
            CollocationError: if it cannot be written; then no device may be changed.
        """
        held = {
            "version": VERSION,
            "owner": self.owner._asdict(),
            "slices": self.slices,
            "servers": self.servers,
        }
        partial = self.path.with_suffix(".new")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(held, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise _unwritable(self.path.parent, error) from error

    def remove(self) -> None:
        """Remove the entry after everything is undone."""
        with contextlib.suppress(OSError):  # undoing it again is harmless
            self.path.unlink(missing_ok=True)


def entries(journal: Path) -> Iterator[Path]:
    """Yield the files of a journal, newest first; none if the folder is missing.

    The latest changes are undone first.
    """
    dated = []
    for path in journal.glob(PATTERN):
        with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
            dated.append((path.stat().st_mtime_ns, path))
    yield from (path for _, path in sorted(dated, reverse=True))


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks after boot; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot() -> str:
    """Return the id of this boot of the machine, "" where there is none."""
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


# What became of a change that was undone.


class UndoOutcome(NamedTuple):
    """The result of undoing one of our slices or servers.

    Attributes:
        kind: "undone"; "nothing" if it had never been created; "changed" if others removed or took
            it, so that nothing of ours remains; "left" if it could not be undone yet.
        message: one sentence, "" for none.
    """

    kind: Literal["undone", "nothing", "changed", "left"]
    message: str = ""
