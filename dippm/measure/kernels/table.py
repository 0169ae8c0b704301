"""Kernel tables of many points in one file: Parquet, or JSON lines without pyarrow.

Names repeat between rows and points, so a dictionary and zstd compress a kernel to a few bytes.
Numbers are stored byte by byte: the high bytes of most are alike.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError
from dippm.measure.columns import KERNEL
from dippm.measure.kernels.record import TracedKernel
from dippm.measure.parquet import parquet_rows

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "row_id"
"""Column with the id of the measured row of a kernel."""
REPEATED = (KEY, "kernel", "operators.list.element", "path", "part")
"""Columns with repeating values, by their names in Parquet."""
NUMERIC = ("instances.list.element", "start_ns", "ns", "grid.list.element", "block.list.element")
"""Columns with numbers that hardly repeat: with a dictionary they grow by half."""
SUFFIXES = (".parquet", ".jsonl.gz")
Row = Mapping[str, Any]


def suffix() -> str:
    """Return the suffix of files on this machine."""
    return SUFFIXES[0 if find_spec("pyarrow") else 1]


def encode_tables(tables: Mapping[str, Sequence[Row]], *, name: str) -> bytes:
    """Return the content of a file.

    Args:
        tables: rows of `TracedKernel.to_dict` by id of the measured row.
        name: name of the file; its suffix decides the format.
    """
    rows = [{KEY: key, **row} for key, table in tables.items() for row in table]
    if name.endswith(SUFFIXES[0]):
        return _parquet(rows)
    lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return gzip.compress("".join(lines).encode(), mtime=0)


def read(path: Path) -> dict[str, tuple[TracedKernel, ...]]:
    """Return the kernels of a file by id of the measured row, each table in order.

    Raises:
        DippmError: if the file is damaged or pyarrow is missing.
    """
    try:
        rows = _rows(path)
        found: dict[str, list[TracedKernel]] = {}
        for row in rows:
            found.setdefault(row[KEY], []).append(TracedKernel.of(row))
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


def _rows(path: Path) -> Iterable[Row]:
    if path.name.endswith(SUFFIXES[1]):
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return parquet_rows(path)


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=_schema())
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=list(REPEATED),
        column_encoding=dict.fromkeys(NUMERIC, "BYTE_STREAM_SPLIT"),
    )
    return buffer.getvalue()


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "integer": pa.int64(),
        "integers": pa.list_(pa.int64()),
    }
    return pa.schema([pa.field(c.name, types[c.kind], metadata={"about": c.about}) for c in KERNEL])
