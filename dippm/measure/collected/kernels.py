"""Kernel tables of a collected set: one file per shard with the tables of its rows.

In the journal a row contains its table as packed text (`KEY`). When rows move to a shard, their
tables move to "kernels-0000.parquet", or to "kernels-0000.jsonl.gz" without pyarrow. That file is
written before the shard, so that every row of a shard has its table. The second section encodes and
reads such files.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError
from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.journal import Row, read_journal, write_whole
from dippm.measure.columns import KERNEL
from dippm.measure.kernels import TracedKernel

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "kernels"
"""Name under which a row of the journal contains its packed table."""
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
        others: further tables by row id, from existing files.

    Raises:
        OSError: if the file cannot be written.
    """
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        key: [kernel.to_dict() for kernel in kernels] for key, kernels in (others or {}).items()
    }
    tables |= {row["row_id"]: unpack_kernels(row[KEY]) for row in rows if row.get(KEY)}
    if tables:
        suffix = SUFFIXES[0 if find_spec("pyarrow") else 1]
        path = shard.with_name(f"{_stem(shard)}{suffix}")
        write_whole(path, encode_tables(tables, name=path.name))


def kernels_of(shard: Path) -> Kernels:
    """Return the kernel tables of a shard by row id.

    Raises:
        DippmError: if the file is damaged or pyarrow is missing.
    """
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in kernel_files(shard):
        found |= read_table_file(path)
    return found


def kernel_files(shard: Path) -> list[Path]:
    """Return the existing files of kernel tables of a shard."""
    paths = (shard.with_name(f"{_stem(shard)}{end}") for end in SUFFIXES)
    return [path for path in paths if path.is_file()]


def read_kernels(folder: Path) -> Kernels:
    """Return all kernel tables of a set by row id, even while a collector is writing.

    Raises:
        DippmError: if a file is damaged or pyarrow is missing.
    """
    journal, _ = read_journal(folder / JOURNAL)  # first: its rows may move to a shard meanwhile
    found: dict[str, tuple[TracedKernel, ...]] = {}
    for path in sorted(folder.glob("kernels-*")):
        if path.name.endswith(SUFFIXES):
            found |= read_table_file(path)
    for row in journal:
        if row.get(KEY):
            found[str(row["row_id"])] = tuple(map(TracedKernel.of, unpack_kernels(row[KEY])))
    return found


def _stem(shard: Path) -> str:
    return shard.name.partition(".")[0].replace("shard-", "kernels-")


# Format of the file: Parquet, or JSON lines without pyarrow.
#
# Names repeat between rows and points, so a dictionary and zstd compress a kernel to a few bytes.
# Numbers are split into streams of bytes, because their high bytes are mostly equal.


ROW_ID = "row_id"
"""Column with the id of the measured row of a kernel."""
REPEATED = (ROW_ID, "kernel", "operators.list.element", "path", "part")
"""Columns with repeating values, by their names in Parquet."""
NUMERIC = ("instances.list.element", "start_ns", "ns", "grid.list.element", "block.list.element")
"""Columns with numbers that hardly repeat, which a dictionary would enlarge by half."""
SUFFIXES = (".parquet", ".jsonl.gz")


def encode_tables(tables: Mapping[str, Sequence[Row]], *, name: str) -> bytes:
    """Return the content of a file.

    Args:
        tables: rows of `TracedKernel.to_dict` by id of the measured row.
        name: name of the file; its suffix decides the format.
    """
    rows = [{ROW_ID: key, **row} for key, table in tables.items() for row in table]
    if name.endswith(SUFFIXES[0]):
        return _parquet_table(rows)
    lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return gzip.compress("".join(lines).encode(), mtime=0)


def read_table_file(path: Path) -> dict[str, tuple[TracedKernel, ...]]:
    """Return the kernels of a file by id of the measured row, each table in order.

    Raises:
        DippmError: if the file is damaged or pyarrow is missing.
    """
    try:
        rows = _table_rows(path)
        found: dict[str, list[TracedKernel]] = {}
        for row in rows:
            found.setdefault(row[ROW_ID], []).append(TracedKernel.of(row))
    except ImportError as error:
        raise DippmError(
            f"{path} is Parquet and pyarrow is not installed",
            "Install what reports need: pip install 'dippm[report]'.",
        ) from error
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        RecursionError,
        zlib.error,
    ) as error:
        raise DippmError(
            f"the kernel table {path} cannot be read: {error}",
            "Restore it, or move it away to go on without its kernels.",
        ) from error
    return {key: tuple(kernels) for key, kernels in found.items()}


def _table_rows(path: Path) -> Iterable[Row]:
    if path.name.endswith(SUFFIXES[1]):
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return parquet_rows(path)


def _parquet_table(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=_kernel_schema())
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=list(REPEATED),
        column_encoding=dict.fromkeys(NUMERIC, "BYTE_STREAM_SPLIT"),
    )
    return buffer.getvalue()


def _kernel_schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "integer": pa.int64(),
        "integers": pa.list_(pa.int64()),
    }
    return pa.schema([pa.field(c.name, types[c.kind], metadata={"about": c.about}) for c in KERNEL])


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file, all columns or some.

    Raises:
        ImportError: if pyarrow is not installed.
        OSError: if the file cannot be opened.
        ValueError: if it is damaged, or has a type without Python values.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        rows: list[dict[str, Any]] = (
            ParquetFile(path).read(columns=columns and list(columns)).to_pylist()
        )
    except (ArrowException, ArithmeticError) as error:  # various types, few of them a ValueError
        raise ValueError(str(error)) from error
    return rows
