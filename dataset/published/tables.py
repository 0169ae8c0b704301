"""Tables as files: reading, writing, and the SHA-256 of the contents in any file format.

python -m dataset.published.tables FILE ...    # prints the SHA-256 for sources.toml
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pandas as pd


def read_table(path: Path) -> pd.DataFrame:
    """Return a table of a Parquet or CSV file."""
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet or CSV, by the suffix of the name, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=path.suffix, delete=False) as file:
        temporary = Path(file.name)
    try:
        if path.suffix == ".parquet":
            table.to_parquet(temporary, compression="zstd", index=False)
        else:
            table.to_csv(temporary, index=False)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def digest_of_table(path: Path) -> str:
    """Return the SHA-256 over columns, types and values of a table, in order.

    The bytes of a Parquet file depend on the version that wrote it; this digest does not. Files
    that are not tables (JSON) are hashed byte by byte.
    """
    if path.suffix not in (".parquet", ".csv"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    table, digest = read_table(path), hashlib.sha256()
    for name in table.columns:
        column = table[name]
        if column.dtype.kind in "iufb":
            kind = column.dtype.newbyteorder("<")
            values = np.where(column.isna(), np.nan, column) if kind.kind == "f" else column
            content = np.asarray(values).astype(kind).tobytes()
        else:
            kind, missing = "text", column.isna()
            said = (f"{text.tolist() if hasattr(text, 'tolist') else text}\x1f" for text in column)
            content = "".join(
                "\x1e" if absent else text for text, absent in zip(said, missing, strict=True)
            ).encode()
        digest.update(f"{name}:{kind}:{len(content)}\n".encode() + content)
    return digest.hexdigest()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(digest_of_table(Path(name)), name)
