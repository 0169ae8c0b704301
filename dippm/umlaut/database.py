"""Databases of UMLAUT, read as they are: never written to, and what is damaged is told.

    benchmark_metadata   uuid, meta_description, meta_name, meta_start_time
    measurement          id, uuid, measurement_datetime, measurement_description, measurement_type,
                         measurement_data (JSON, or a pickle in old ones), measurement_unit,
                         measured_method_name

Columns of early versions have other names or are missing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dippm.errors import RunError
from dippm.umlaut.pickled import plain_pickle

RUNS, MEASUREMENTS = "benchmark_metadata", "measurement"
MAGIC = b"SQLite format 3\x00"
HINT = "Give a database file that UMLAUT's Benchmark(db_file) wrote."
OF_RUN = {
    "uuid": ("uuid",),
    "description": ("meta_description", "description"),
    "name": ("meta_name", "name"),
    "start": ("meta_start_time", "start_time"),
}
OF_MEASUREMENT = {
    "id": ("id",),
    "uuid": ("uuid", "benchmark_uuid"),
    "at": ("measurement_datetime", "datetime"),
    "description": ("measurement_description", "_description", "description"),
    "type": ("measurement_type", "_type", "type"),
    "data": ("measurement_data", "_data", "value"),
    "unit": ("measurement_unit", "_unit", "unit"),
    "method": ("measured_method_name",),
}
LARGEST = 1 << 30
"""Bytes of a cut file that is mended in memory."""
LONGEST_GAP = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table of measurements.

    Attributes:
        id: of the row.
        uuid: of the run.
        at: when it was logged, in local time of the machine; None if it cannot be read.
        description: the user's word.
        type: kind of row.
        data: decoded: a number, a list, an object.
        unit: as it was written.
        method: function, "" in early versions.
    """

    id: int
    uuid: str
    at: datetime | None
    description: str
    type: str
    data: Any
    unit: str
    method: str


@dataclass(frozen=True, slots=True)
class Database:
    """What a database of UMLAUT holds.

    Attributes:
        runs: by uuid: description, name and start as they were written.
        measurements: in the order of their ids.
        notes: what could not be read, for people.
    """

    runs: Mapping[str, Mapping[str, Any]]
    measurements: Sequence[Measured]
    notes: tuple[str, ...]


def is_umlaut(path: Path) -> bool:
    """Return whether a file is a database with UMLAUT's tables.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
    try:
        with closing(_open(path)) as connection:
            return set(_tables(connection)) >= {RUNS, MEASUREMENTS}
    except sqlite3.Error:
        return False


def read_database(path: Path) -> Database:
    """Read everything that can be read.

    Raises:
        RunError: if it is no database of UMLAUT, or so damaged that it cannot be told.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}", HINT) from error
    if head != MAGIC:
        raise RunError(f"{path} is no SQLite database", HINT)
    notes: list[str] = []
    try:
        with closing(_open(path)) as connection:
            tables = _tables(connection)
            missing = {RUNS, MEASUREMENTS} - set(tables)
            if missing:
                raise RunError(f"{path} has no table {' or '.join(sorted(missing))}", HINT)
            runs = [dict(row) for row in _rows(connection, RUNS, OF_RUN, notes)]
            held = list(_rows(connection, MEASUREMENTS, OF_MEASUREMENT, notes))
    except sqlite3.Error as error:
        raise RunError(
            f"{path} is damaged: {error}",
            "Nothing in it can be read. `sqlite3 FILE .recover` may save parts of it.",
        ) from error
    by_uuid = {str(row["uuid"]): row for row in runs}
    measurements = []
    for row in held:
        try:
            measurements.append(_measured(row))
        except (ValueError, TypeError) as error:
            notes.append(f"measurement {row['id']} cannot be read: {error}")
    return Database(by_uuid, measurements, tuple(notes))


def _open(path: Path) -> sqlite3.Connection:
    # Without a write-ahead log nothing is created beside the file, and no lock is taken.
    beside = path.with_name(path.name + "-wal")
    how = "mode=ro" if beside.exists() else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)
    missing = _missing_bytes(path)
    if missing:  # SQLite reads nothing of a file that was cut; with empty pages for the lost ones
        connection.close()
        connection = sqlite3.connect(":memory:")
        connection.deserialize(path.read_bytes() + bytes(missing))
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection


def _missing_bytes(path: Path) -> int:
    """Return how many bytes a file lacks of the size that its header states."""
    with path.open("rb") as file:
        head = file.read(32)
    page = int.from_bytes(head[16:18], "big")
    page, pages = 65536 if page == 1 else page, int.from_bytes(head[28:32], "big")
    if page & (page - 1) or not page >= 512 or pages * page > LARGEST:
        return 0
    return max(0, pages * page - path.stat().st_size)


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def _rows(
    connection: sqlite3.Connection,
    table: str,
    wanted: Mapping[str, tuple[str, ...]],
    notes: list[str],
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, around pages that are damaged."""
    there = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    chosen = {key: next((n for n in names if n in there), None) for key, names in wanted.items()}
    columns = ", ".join(f'"{name}"' if name else "NULL" for name in chosen.values())
    select = f"SELECT rowid, {columns} FROM {table}"
    forward, whole = _until_damage(connection, f"{select} ORDER BY rowid")
    found = {row[0]: row[1:] for row in forward}
    if not whole:
        backward, _ = _until_damage(connection, f"{select} ORDER BY rowid DESC")
        found.update({row[0]: row[1:] for row in backward})
        first = max((row[0] for row in forward), default=0)
        last = min((row[0] for row in backward), default=first)
        for number in range(first + 1, min(last, first + LONGEST_GAP)):
            one, _ = _until_damage(connection, f"{select} WHERE rowid = {number}")
            found.update({row[0]: row[1:] for row in one})
        lost = [number for number in range(first + 1, last) if number not in found]
        where = f" (rows {lost[0]} to {lost[-1]})" if lost else ""
        notes.append(f"the table {table} is damaged{where}: {len(found)} rows could be read")
    for number in sorted(found):
        yield dict(zip(chosen, found[number], strict=True)) | {"rowid": number}


def _until_damage(connection: sqlite3.Connection, query: str) -> tuple[list[Any], bool]:
    rows: list[Any] = []
    try:
        for row in connection.execute(query):
            rows.append(row)
    except sqlite3.Error:
        return rows, False
    return rows, True


def _measured(row: Mapping[str, Any]) -> Measured:
    return Measured(
        int(row["id"] if row["id"] is not None else row["rowid"]),
        str(row["uuid"]),
        moment(row["at"]),
        str(row["description"] or ""),
        str(row["type"] or ""),
        _decoded(row["data"]),
        str(row["unit"] or ""),
        str(row["method"] or ""),
    )


def moment(written: Any) -> datetime | None:
    """Return a time as UMLAUT wrote it, None if it cannot be read."""
    try:
        return written if isinstance(written, datetime) else datetime.fromisoformat(str(written))
    except ValueError:
        return None


def _decoded(data: Any) -> Any:
    """Return JSON, JSON inside of JSON, or a pickle of plain values, as plain values."""
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError:
            return plain_pickle(data)
        if data.startswith("\x80"):
            return plain_pickle(data.encode())
    for _ in range(2):
        if not isinstance(data, str):
            break
        try:
            data = json.loads(data)
        except ValueError:
            break
    return data
