"""Read databases of UMLAUT without writing to them, reporting what is damaged.

    benchmark_metadata   uuid, meta_description, meta_name, meta_start_time
    measurement          id, uuid, measurement_datetime, measurement_description, measurement_type,
                         measurement_data (JSON, or a pickle in old ones), measurement_unit,
                         measured_method_name

Early versions have other column names, or lack some.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dippm.base.files import is_regular
from dippm.errors import RunError, shortened
from dippm.umlaut.pickled import Allowance, plain_pickle

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
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""UnicodeDecodeError is raised where the driver's message would quote a damaged name."""
LARGEST = 1 << 28
"""Largest truncated file, in bytes, that is completed in memory."""
LARGEST_CELL = 64 << 20
"""Largest value, in bytes: a week of samples, ten a second, as indented JSON."""
LONGEST_GAP = 100_000
LONGEST_TEXT = 10_000
LONGEST_S = 1e9
EARLIEST, LATEST = datetime(1970, 1, 2), datetime(2200, 1, 1)
"""Times that fit into 64-bit nanoseconds since 1970, in any time zone."""
NOT_TOLD = 20
"""Most rows with a reason each; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class DatabaseRow:
    """A row of the table of measurements.

    Attributes:
        id: id of the row.
        uuid: uuid of the run.
        at: time of logging, in local time of the machine; None if unreadable.
        description: the user's description.
        type: kind of row.
        data: decoded data: a number, a list, an object.
        unit: unit as written.
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
    """The contents of a database of UMLAUT.

    Attributes:
        runs: description, name and start as written, by uuid.
        measurements: rows in the order of their ids.
        notes: descriptions of unreadable parts.
    """

    runs: Mapping[str, Mapping[str, Any]]
    measurements: Sequence[DatabaseRow]
    notes: tuple[str, ...]


def is_umlaut(path: Path) -> bool:
    """Return whether a file is a database with UMLAUT's tables.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
    try:
        with closing(_open(path)) as connection:
            return set(_tables(connection)) >= {RUNS, MEASUREMENTS}
    except SQLITE_ERRORS:
        return False


def read_database(path: Path) -> Database:
    """Read a database; an unreadable row becomes a note with its reason.

    Raises:
        RunError: if it is not a database of UMLAUT, or too damaged to recognise.
    """
    try:
        if not is_regular(path):
            path.stat()  # raises if the file does not exist
            raise RunError(f"{path} is no file", HINT)
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path} cannot be read: {reason}", HINT) from error
    if head != MAGIC:
        raise RunError(f"{path} is not a SQLite database", HINT)
    notes: list[str] = []
    try:
        with closing(_open(path)) as connection:
            tables = _tables(connection)
            missing = {RUNS, MEASUREMENTS} - set(tables)
            if missing:
                raise RunError(f"{path} has no table {' or '.join(sorted(missing))}", HINT)
            runs = [dict(row) for row in _rows(connection, RUNS, OF_RUN, notes)]
            held = _rows(connection, MEASUREMENTS, OF_MEASUREMENT, notes)
            measurements = _measurements(held, notes)
    except (*SQLITE_ERRORS, MemoryError) as error:
        raise RunError(
            f"{path} is damaged: {error or 'it asks for more memory than there is'}",
            "Nothing in it can be read. `sqlite3 FILE .recover` may save parts of it.",
        ) from error
    about = {str(row["uuid"])[:LONGEST_TEXT]: row for row in runs}
    return Database(about, measurements, tuple(notes))


def _measurements(rows: Iterable[Mapping[str, Any]], notes: list[str]) -> list[DatabaseRow]:
    found, unread, allowance = [], 0, Allowance()
    for row in rows:
        try:
            found.append(_parse_row(row, allowance))
        except (ValueError, TypeError, OverflowError) as error:
            unread += 1
            if unread <= NOT_TOLD:
                notes.append(f"measurement {row['rowid']} cannot be read: {shortened(str(error))}")
    if unread > NOT_TOLD:
        notes.append(f"{unread - NOT_TOLD:,} more measurements cannot be read")
    return found


def _open(path: Path) -> sqlite3.Connection:
    # Without a write-ahead log no file is created beside it, and no lock is taken.
    beside = path.with_name(path.name + "-wal")
    how = "mode=ro" if beside.exists() else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)
    missing = _missing_bytes(path)
    if missing:  # SQLite reads no truncated file: append empty pages for the lost ones
        connection.close()
        connection = sqlite3.connect(":memory:")
        connection.deserialize(path.read_bytes() + bytes(missing))
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    # SQLite's advice for untrusted databases: their SQL calls no functions, and sizes are checked.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CELL)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _missing_bytes(path: Path) -> int:
    """Return the number of bytes that a file lacks of the size in its header."""
    with path.open("rb") as file:
        head = file.read(32)
    page = int.from_bytes(head[16:18], "big")
    page, pages = 65536 if page == 1 else page, int.from_bytes(head[28:32], "big")
    if page & (page - 1) or not page >= 512 or pages * page > LARGEST:
        return 0
    return max(0, pages * page - path.stat().st_size)


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of real tables; a view could generate any number of rows."""
    real = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    return [name for (name,) in connection.execute(real)]


class _ByteBudget:
    """A byte budget for rows: a damaged file can reference a page a hundred times."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        (page,), (pages,) = (
            connection.execute(f"PRAGMA {what}").fetchone() for what in ("page_size", "page_count")
        )
        self.left: int = 2 * page * pages

    def holds(self, row: Sequence[Any]) -> bool:
        self.left -= 4 + sum(len(value) for value in row if isinstance(value, str | bytes))
        return self.left >= 0


def _rows(
    connection: sqlite3.Connection,
    table: str,
    wanted: Mapping[str, tuple[str, ...]],
    notes: list[str],
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, skipping damaged pages."""
    budget = _ByteBudget(connection)
    there = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    chosen = {key: next((n for n in names if n in there), None) for key, names in wanted.items()}
    columns = ", ".join(f'"{name}"' if name else "NULL" for name in chosen.values())
    select = f"SELECT rowid, {columns} FROM {table}"
    forward, whole = _until_damage(connection, f"{select} ORDER BY rowid", budget)
    found = {row[0]: row[1:] for row in forward}
    if not whole:
        backward, _ = _until_damage(connection, f"{select} ORDER BY rowid DESC", budget)
        found.update({row[0]: row[1:] for row in backward})
        first = max((row[0] for row in forward), default=0)
        last = min((row[0] for row in backward), default=first)
        for number in range(first + 1, min(last, first + LONGEST_GAP)):
            one, _ = _until_damage(connection, f"{select} WHERE rowid = {number}", budget)
            found.update({row[0]: row[1:] for row in one})
        lost = [number for number in range(first + 1, last) if number not in found]
        where = f" (rows {lost[0]} to {lost[-1]})" if lost else ""
        notes.append(f"the table {table} is damaged{where}: {len(found)} rows could be read")
    for number in sorted(found):
        yield dict(zip(chosen, found[number], strict=True)) | {"rowid": number}


def _until_damage(
    connection: sqlite3.Connection, query: str, budget: _ByteBudget
) -> tuple[list[Any], bool]:
    rows: list[Any] = []
    try:
        for row in connection.execute(query):
            if not budget.holds(row):
                return rows, False
            rows.append(row)
    except SQLITE_ERRORS:
        return rows, False
    return rows, True


def _parse_row(row: Mapping[str, Any], allowance: Allowance) -> DatabaseRow:
    number = int(row["id"] if row["id"] is not None else row["rowid"])
    description, kind = _text(row["description"]), _text(row["type"])
    data = _decode(row["data"], allowance)
    if data is None:
        raise ValueError("it has no value, or one that is not finite")
    if kind == "time" and isinstance(data, int | float) and not 0 <= data <= LONGEST_S:
        raise ValueError(f"its time is {data:g} s")
    return DatabaseRow(
        number,
        _text(row["uuid"]),
        moment(row["at"]),
        description,
        kind,
        data,
        _text(row["unit"]),
        _text(row["method"]),
    )


def _text(written: Any) -> str:
    """Return the text of a cell.

    Raises:
        ValueError: if it is unreasonably long.
    """
    text = str(written or "")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a text of it has {len(text):,} characters")
    return text


def moment(written: Any) -> datetime | None:
    """Parse a time as UMLAUT wrote it; return None if it is unreadable or out of range."""
    try:
        at = written if isinstance(written, datetime) else datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return at if EARLIEST <= at.replace(tzinfo=None) <= LATEST else None


def _decode(data: Any, allowance: Allowance) -> Any:
    """Decode JSON, JSON inside of JSON, or a pickle, to plain values.

    Raises:
        ValueError: if it is damaged, a pickle of other objects, or too large.
    """
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError:  # a pickle of protocol 2 or later
            return plain_pickle(data, allowance)
        if data.endswith("."):  # a pickle of protocol 0 or 1 is text; JSON never ends like this
            return plain_pickle(data.encode(), allowance)
    size = len(data) if isinstance(data, str) else 0
    for _ in range(2):
        if not isinstance(data, str):
            break
        allowance.check(sum(map(data.count, ",[{")))  # before the values are created
        try:
            data = json.loads(data)
        except ValueError as error:
            if data.lstrip()[:1] in ("[", "{"):
                raise ValueError(f"its JSON is damaged: {error}") from error
            break
        except RecursionError:
            raise ValueError("its JSON is too deep") from None
    return allowance.plain(_text(data) if isinstance(data, str) else data, size)
