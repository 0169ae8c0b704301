"""Kernel tables of a collected set: one file per shard with the tables of its rows.

In the journal a table is packed text in its row (`KEY`); when rows move to a shard, their tables
move to "kernels-0000.parquet", or "kernels-0000.jsonl.gz" without pyarrow. It is written before its
shard, so that every row of a shard has its table.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.journal import Row, read_journal, write_whole
from dippm.measure.kernels import table
from dippm.measure.kernels.record import TracedKernel

KEY = "kernels"
Kernels = Mapping[str, tuple[TracedKernel, ...]]


def pack_kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return a kernel table as compressed text."""
    return base64.b64encode(zlib.compress(json.dumps(kernels).encode(), 9)).decode()


def unpack_kernels(text: str) -> list[dict[str, Any]]:
    """Return the rows of a compressed table."""
    rows: list[dict[str, Any]] = json.loads(zlib.decompress(base64.b64decode(text)))
    return rows


def without_kernels(row: Row) -> dict[str, Any]:
    """Return a row of the journal without its kernel table, as in a shard."""
    return {name: value for name, value in row.items() if name != KEY}


def write_kernels(shard: Path, rows: Iterable[Row], others: Kernels | None = None) -> None:
    """Write the kernel tables of a shard's rows; no file if there are none.

    Args:
        shard: path of the shard, "shard-0000" with any suffix.
        rows: rows of the journal.
        others: tables from existing files.

    Raises:
        OSError: if it cannot be written.
    """
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        key: [kernel.to_dict() for kernel in kernels] for key, kernels in (others or {}).items()
    }
    tables |= {row["row_id"]: unpack_kernels(row[KEY]) for row in rows if row.get(KEY)}
    if tables:
        path = shard.with_name(f"{_stem(shard)}{table.suffix()}")
        write_whole(path, table.encode_tables(tables, name=path.name))


def kernels_of(shard: Path) -> Kernels:
    """Return the kernel tables of a shard by row id.

    Raises:
        DippmError: if the file is damaged or pyarrow is missing.
    """
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in kernel_files(shard):
        found |= table.read(path)
    return found


def kernel_files(shard: Path) -> list[Path]:
    """Return the existing files of kernel tables of a shard."""
    paths = (shard.with_name(f"{_stem(shard)}{end}") for end in table.SUFFIXES)
    return [path for path in paths if path.is_file()]


def read_kernels(folder: Path) -> Kernels:
    """Return all kernel tables of a set by row id, even while a collector is writing.

    Raises:
        DippmError: if a file is damaged or pyarrow is missing.
    """
    journal, _ = read_journal(folder / JOURNAL)  # first: its rows may move to a shard meanwhile
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in sorted(folder.glob("kernels-*")):
        if path.name.endswith(table.SUFFIXES):
            found |= table.read(path)
    for row in journal:
        if row.get(KEY):
            found[str(row["row_id"])] = tuple(map(TracedKernel.of, unpack_kernels(row[KEY])))
    return found


def _stem(shard: Path) -> str:
    return shard.name.partition(".")[0].replace("shard-", "kernels-")
