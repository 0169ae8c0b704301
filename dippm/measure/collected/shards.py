"""Shards: rows moved from the journal, as Parquet, or as compressed JSON lines without pyarrow."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import shortened
from dippm.measure.collected import DamagedRowsError, RowReaderNotInstalledError
from dippm.measure.collected.journal import Row, encode, sync_folder, write_whole
from dippm.measure.collected.kernels import (
    Kernels,
    kernel_files,
    kernels_of,
    parquet_rows,
    without_kernels,
    write_kernels,
)
from dippm.measure.columns import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 1 << 30
"""Limit for the decompressed size of a shard."""
NAME = re.compile(r"shard-(\d{4,})\.(parquet|jsonl\.gz)")
JSON_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "json")


def has_pyarrow() -> bool:
    """Return whether Parquet can be written and read here."""
    try:
        import pyarrow.parquet
    except ImportError:
        return False
    return bool(pyarrow.parquet)


def shards(folder: Path) -> list[Path]:
    """Return the shards of a folder in the order of writing."""
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def write_shard(folder: Path, rows: Sequence[Row], others: Kernels | None = None) -> Path:
    """Write rows to the next shard, and their kernel tables to its file, atomically.

    Args:
        folder: folder of the set.
        rows: rows of the journal, or of shards.
        others: kernel tables of rows from shards.

    Raises:
        OSError: if it cannot be written.
    """
    last = max((int(NAME.fullmatch(path.name)[1]) for path in shards(folder)), default=-1)  # type: ignore[index]
    name = f"shard-{last + 1:04d}"
    write_kernels(folder / name, rows, others)
    rows = [without_kernels(row) for row in rows]
    if has_pyarrow():
        path, content = folder / f"{name}.parquet", _parquet(rows)
    else:
        path = folder / f"{name}.jsonl.gz"
        content = gzip.compress(b"".join(map(encode, rows)), mtime=0)
    write_whole(path, content)
    return path


def read_shard(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a shard, with all columns or some.

    Raises:
        RowReaderNotInstalledError: if it is Parquet and pyarrow is not installed.
        DamagedRowsError: if it cannot be read.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                text = file.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise ValueError(f"it unfolds to more than {MOST_BYTES >> 20} MiB")
            lines = text.splitlines()
            return [_some(json.loads(line), columns) for line in lines]
        return _read_parquet(path, columns)
    except ImportError as error:
        raise RowReaderNotInstalledError(
            f"{path} is Parquet and pyarrow is not installed",
            "Install pyarrow: pip install 'dippm[measure]'.",
        ) from error
    except (OSError, ValueError, TypeError, EOFError, RecursionError, zlib.error) as error:
        raise DamagedRowsError(
            f"{path} cannot be read: {error}", "Move it away to go on without its rows."
        ) from error


def compact(folder: Path, most_rows: int) -> None:
    """Merge neighbouring shards as long as their sum has at most `most_rows` rows.

    A crash in between leaves rows in two shards; `without_doubles` and the next call handle that.

    Raises:
        OSError: if a merged shard cannot be written; the shards are then unchanged.
    """
    for group in _groups(folder, most_rows):
        rows = without_doubles(row for path in group for row in read_shard(path))
        tables = {key: kernels for path in group for key, kernels in kernels_of(path).items()}
        write_shard(folder, list(rows), tables)
        for path in group:
            path.unlink()
            for beside in kernel_files(path):
                beside.unlink()
    sync_folder(folder)


def without_doubles(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each row once."""
    seen = set()
    for row in rows:
        if row["row_id"] not in seen:
            seen.add(row["row_id"])
            yield row


def arrow_schema() -> pa.Schema:
    """Return the types of the columns: text, numbers, lists; nested values as JSON text."""
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "integer": pa.int64(),
        "real": pa.float64(),
        "flag": pa.bool_(),
        "reals": pa.list_(pa.float64()),
        "json": pa.string(),
    }
    fields = [
        pa.field(column.name, types[column.kind], metadata={"about": column.about})
        for column in COLUMNS
    ]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [
        {k: json.dumps(v) if k in JSON_COLUMNS and v is not None else v for k, v in row.items()}
        for row in rows
    ]
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(flat, schema=arrow_schema())
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def _read_parquet(path: Path, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    rows = parquet_rows(path, columns)
    for row in rows:
        for name in row.keys() & set(JSON_COLUMNS):
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def _some(row: Any, columns: Sequence[str] | None) -> Any:
    if not isinstance(row, dict):
        raise ValueError(f"a line is {shortened(repr(row))}, not a row")
    return row if columns is None else {name: row.get(name) for name in columns}


def _groups(folder: Path, most_rows: int) -> list[list[Path]]:
    """Return groups of two or more neighbours, or single shards to be converted to Parquet."""
    groups: list[list[Path]] = []
    size = 0
    for path in shards(folder):
        rows = len(read_shard(path, ("row_id",)))
        if groups and size + rows <= most_rows:
            groups[-1].append(path)
            size += rows
        else:
            groups.append([path])
            size = rows
    return [g for g in groups if len(g) > 1 or (has_pyarrow() and g[0].suffix == ".gz")]
