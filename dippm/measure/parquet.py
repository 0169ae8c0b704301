"""Rows of a Parquet file that may be damaged or foreign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
