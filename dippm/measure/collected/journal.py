"""Files that a collector writes while it measures: the journal of rows, and campaign files.

The journal has one line of JSON per row, synced to disk before the next point starts. `kill -9`
loses at most the row in flight: each line is written and synced as a whole, and lines torn by a
crash of the machine are set aside when the journal is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dippm.measure.collected import StorageError

NAME = "journal.jsonl"
Row = Mapping[str, Any]


class Journal:
    """An append-only file of rows.

    Attributes:
        path: path of the file.
        count: number of rows.
        set_aside: number of damaged lines that were moved away on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        rows, self.set_aside = _recover(path)
        self.count = len(rows)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._file).st_size
        sync_folder(path.parent)

    def append(self, row: Row) -> None:
        """Append a row and sync it to disk.

        Raises:
            StorageError: if the row cannot be written; the journal is then unchanged.
        """
        line = encode(row)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # a torn rest is set aside at the next start
                os.ftruncate(self._file, self._size)
            raise StorageError(
                f"{self.path}: {error.strerror} (a row of {len(line):,} bytes)",
                "Free space there and start the same command again; it goes on where it stopped.",
            ) from error
        self._size += len(line)
        self.count += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return read_journal(self.path)[0]

    def clear(self) -> None:
        """Delete all rows, after they are in a shard."""
        os.ftruncate(self._file, 0)
        os.fsync(self._file)
        self._size = self.count = 0

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        os.close(self._file)
        if not self.count:
            self.path.unlink(missing_ok=True)


def encode(row: Row) -> bytes:
    """Return a row as a line of JSON."""
    return (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n").encode()


def read_journal(path: Path) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the complete rows of a journal and its damaged lines; a missing file has neither."""
    rows, damaged = [], []
    content = path.read_bytes() if path.exists() else b""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged.append(line)
    return rows, damaged


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically.

    Raises:
        OSError: if it cannot be written; the old file is unchanged.
    """
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _recover(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Move damaged lines to a separate file; return the rows and the number of these lines."""
    rows, damaged = read_journal(path)
    if damaged:
        with path.with_name(f"{path.name}.torn").open("ab") as aside:
            aside.writelines(line.rstrip(b"\n") + b"\n" for line in damaged)
            aside.flush()
            os.fsync(aside.fileno())
        write_whole(path, b"".join(encode(row) for row in rows))
    return rows, len(damaged)


# Campaign files: for each start of the collector, its request and how it ended.


CAMPAIGNS = "campaigns"


def write_campaign(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    """Write the file of a campaign, replacing an earlier one.

    Raises:
        OSError: if it cannot be written.
    """
    path = folder / CAMPAIGNS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    return path


def read_campaigns(folder: Path) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the campaigns of a set, oldest first, and the names of unreadable files."""
    found, notes = [], []
    for path in sorted((folder / CAMPAIGNS).glob("*.json")):
        try:
            found.append({"campaign": path.stem, **json.loads(path.read_bytes())})
        except (TypeError, ValueError):
            notes.append(f"{CAMPAIGNS}/{path.name} cannot be read")
    return tuple(found), notes


def mark_killed(folder: Path, statuses: Mapping[str, Mapping[str, int]]) -> None:
    """Mark campaigns without an end as killed, and count their rows.

    Their files were written at the start or at the first row, so rows since then are subtracted
    from the number of points that they state as left.

    Args:
        folder: folder of the set; its lock must be held, so that no campaign can be running.
        statuses: number of rows by campaign and status.

    Raises:
        OSError: if a file cannot be written.
    """
    for campaign in read_campaigns(folder)[0]:
        if campaign.get("ended") == "running":
            name = campaign["campaign"]
            found = dict(statuses.get(name, {}))
            rows = sum(found.values())
            left = campaign.get("left", 0) + campaign.get("rows", 0) - rows
            ended = {"ended": "killed", "statuses": found, "rows": rows, "left": max(0, left)}
            write_campaign(folder, name, {**campaign, **ended})
