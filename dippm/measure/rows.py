"""Rows as the collector leaves them: Parquet shards, the journal's remainder, campaigns.

    DIR/shard-0000.parquet ...    rows, with the columns of `dippm.measure.columns`
    DIR/shard-0000.jsonl.gz ...   the same, from a machine without pyarrow
    DIR/journal.jsonl             one JSON object per row, the newest rows of a running campaign
    DIR/campaigns/<id>.json       what one start of the collector was asked for

A row can stand in a shard and in the journal; it is read once. A journal that ends in the middle
of a line (its writer was killed) loses that line only, and `Collected.notes` says so.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError
from dippm.measure.columns import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd

NAMES = tuple(column.name for column in COLUMNS)
NESTED = frozenset(column.name for column in COLUMNS if column.kind == "json")
NUMBERS = tuple(column.name for column in COLUMNS if column.kind in ("integer", "real"))
DISTURBING = ("thermal", "slowdown", "brake")
"""Parts of the names of throttle reasons under which a GPU is slower than it would be alone. A card
at its power cap is not disturbed: that is how it runs."""

UNSTEADY = 0.2
"""A CPU has no list of others' processes; a standard deviation beyond this part of the mean says
that the steps did not have the machine for themselves."""


class RowsNotFoundError(DippmError, FileNotFoundError):
    """A folder has no rows of the collector."""


class RowReaderNotInstalledError(DippmError, ImportError):
    """The libraries that read Parquet are missing."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a folder holds.

    Attributes:
        folder: where it was read from.
        rows: one line for each row id, the columns of `dippm.measure.columns`, in the order in
            which they were measured; JSON columns hold Python objects.
        campaigns: content of the campaign files, oldest first.
        files: names of the shards, and of the journal if it had rows of its own.
        notes: what was wrong with the files, for people.
    """

    folder: Path
    rows: pd.DataFrame
    campaigns: tuple[Mapping[str, Any], ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]


def collected(folder: Path) -> Collected:
    """Read a folder of the collector.

    Raises:
        RowsNotFoundError: if there are no rows.
        RowReaderNotInstalledError: if pandas or pyarrow is missing.
        DippmError: if a shard is damaged, or has a newer schema than this version.
    """
    _need_libraries()
    shards = sorted([*folder.glob("shard-*.parquet"), *folder.glob("shard-*.jsonl.gz")])
    journal, notes = _journal(folder / "journal.jsonl")
    records = [record for shard in shards for record in _shard(shard)]
    unique = {str(record["row_id"]): record for record in [*records, *journal]}
    if not unique:
        raise RowsNotFoundError(
            f"no measured rows in {folder}",
            "Give a folder that `python -m dataset.collect --out DIR` has written.",
        )
    repeated = len(records) - len({record["row_id"] for record in records})
    if repeated:
        notes.append(f"{repeated} rows stand in the shards twice; each was read once")
    files = [shard.name for shard in shards]
    if set(unique) - {str(record["row_id"]) for record in records}:
        files.append("journal.jsonl")
    return Collected(
        folder, frame(unique.values()), _campaigns(folder, notes), tuple(files), tuple(notes)
    )


def frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with exactly the columns of `dippm.measure.columns`.

    Raises:
        DippmError: if a row has a newer schema than this version.
    """
    import pandas as pd

    rows = [{name: _value(name, record.get(name)) for name in NAMES} for record in records]
    newest = max((row["schema_version"] or 0 for row in rows), default=0)
    if newest > SCHEMA_VERSION:
        raise DippmError(
            f"the rows have schema {newest}, this version reads up to {SCHEMA_VERSION}",
            "Upgrade DIPPM.",
        )
    table = pd.DataFrame(rows, columns=list(NAMES)).astype("object")
    table = table.where(table.notna(), None)
    for name in NUMBERS:
        table[name] = pd.to_numeric(table[name])
    return table.sort_values("measured_at", kind="stable").reset_index(drop=True)


def why_not_used(row: Mapping[Any, Any]) -> str | None:
    """Return why a row is no label, or None if it is one.

    Failed, skipped and disturbed rows stay in the data; whoever learns from it leaves them out
    with this reason.
    """
    if row["status"] != "ok":
        return str(row["status"])
    if row["other_processes"] and row["other_processes"] > 0:
        return "disturbed: other processes on the device"
    reasons = row["throttle_reasons"] or ()
    slowed = sorted(r for r in reasons if any(part in str(r).casefold() for part in DISTURBING))
    if slowed:
        return f"disturbed: throttled ({', '.join(slowed)})"
    latency, spread = row["latency_ms"], row["latency_sd_ms"]
    if latency is None or not latency > 0:
        return "no latency"
    if row["device_kind"] == "cpu" and spread and spread > UNSTEADY * latency:
        return f"disturbed: steps spread by more than {UNSTEADY:.0%} of their mean"
    return None


def _need_libraries() -> None:
    missing = [name for name in ("pandas", "pyarrow") if find_spec(name) is None]
    if missing:
        raise RowReaderNotInstalledError(
            f"reading measured rows needs {' and '.join(missing)}",
            "Install what reports need: pip install 'dippm[report]'.",
        )


def _value(name: str, value: Any) -> Any:
    if name in NESTED and isinstance(value, str):
        return json.loads(value)
    return value


def _shard(path: Path) -> list[dict[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        if path.suffix == ".gz":  # from a machine without pyarrow
            lines = gzip.decompress(path.read_bytes()).splitlines()
            return [json.loads(line) for line in lines]
        rows: list[dict[str, Any]] = ParquetFile(path).read().to_pylist()
    except (ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        raise DippmError(
            f"the shard {path} cannot be read: {error}",
            "Restore it, or move it away to read the others.",
        ) from error
    return rows


def _journal(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    if not path.is_file():
        return [], []
    records, broken = [], 0
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError:
            record, broken = None, broken + 1
        if isinstance(record, dict) and "row_id" in record:
            records.append(record)
    notes = [f"{broken} broken lines of the journal were left out"] if broken else []
    return records, notes


def _campaigns(folder: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    found = []
    for path in sorted((folder / "campaigns").glob("*.json")):
        try:
            found.append({"campaign": path.stem, **json.loads(path.read_bytes())})
        except (TypeError, ValueError):
            notes.append(f"campaigns/{path.name} cannot be read")
    return tuple(found)
