"""Kernel tables of a collected set: beside each shard one file with the tables of its rows.

In the journal a table is packed text in its row (`KEY`); when rows move to a shard, their tables
move to "kernels-0000.parquet", or "kernels-0000.jsonl.gz" where pyarrow is missing. It is written
before its shard, so that no row of a shard lacks its table.
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


def packed(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return a kernel table as short text."""
    return base64.b64encode(zlib.compress(json.dumps(kernels).encode(), 9)).decode()


def unpacked(text: str) -> list[dict[str, Any]]:
    """Return the rows of a packed table."""
    rows: list[dict[str, Any]] = json.loads(zlib.decompress(base64.b64decode(text)))
    return rows


def without_kernels(row: Row) -> dict[str, Any]:
    """Return a row of the journal as it stands in a shard."""
    return {name: value for name, value in row.items() if name != KEY}


def write_kernels(shard: Path, rows: Iterable[Row], others: Kernels | None = None) -> None:
    """Write the file beside a shard, with the tables of its rows; none if there are none.

    Args:
        shard: beside which, "shard-0000" with any end.
        rows: of the journal.
        others: tables that were in files before.

    Raises:
        OSError: if it cannot be written.
    """
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        key: [kernel.to_dict() for kernel in kernels] for key, kernels in (others or {}).items()
    }
    tables |= {row["row_id"]: unpacked(row[KEY]) for row in rows if row.get(KEY)}
    if tables:
        path = shard.with_name(f"{_stem(shard)}{table.suffix()}")
        write_whole(path, table.encoded(tables, name=path.name))


def kernels_of(shard: Path) -> Kernels:
    """Return the tables of a shard's rows by row id.

    Raises:
        DippmError: if the file is damaged or pyarrow is missing.
    """
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in kernel_files(shard):
        found |= table.read(path)
    return found


def kernel_files(shard: Path) -> list[Path]:
    """Return the files beside a shard that are there."""
    paths = (shard.with_name(f"{_stem(shard)}{end}") for end in table.SUFFIXES)
    return [path for path in paths if path.is_file()]


def read_kernels(folder: Path) -> Kernels:
    """Return every kernel table of a set by row id, also while a collector writes there.

    Raises:
        DippmError: if a file is damaged or pyarrow is missing.
    """
    journal, _ = read_journal(folder / JOURNAL)  # first: meanwhile its rows may move to a shard
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in sorted(folder.glob("kernels-*")):
        if path.name.endswith(table.SUFFIXES):
            found |= table.read(path)
    for row in journal:
        if row.get(KEY):
            found[str(row["row_id"])] = tuple(map(TracedKernel.of, unpacked(row[KEY])))
    return found


def _stem(shard: Path) -> str:
    return shard.name.partition(".")[0].replace("shard-", "kernels-")
