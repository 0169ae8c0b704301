"""A collected set: the folder that the collector writes and all other tools read.

    DIR/shard-0000.parquet ...    rows, with the columns of `dippm.measure.columns`
    DIR/shard-0000.jsonl.gz ...   the same, from a machine without pyarrow
    DIR/kernels-0000.parquet ...  kernel tables of the rows of that shard, see `kernels`
    DIR/journal.jsonl             one JSON object per row, the newest rows of a running campaign
    DIR/campaigns/<id>.json       the request and the result of one start of the collector

`Store` writes it row by row, so that a crash loses at most the row in flight; `collected` reads it
as a table, even while a collector is writing. A row that is both in a shard and in the journal is
read once.
"""

from __future__ import annotations

from dippm.errors import DippmError

# Errors of collected sets.


class RowsNotFoundError(DippmError, FileNotFoundError):
    """A folder has no rows of the collector."""


class RowReaderNotInstalledError(DippmError, ImportError):
    """The libraries that read Parquet are missing."""


class DamagedRowsError(DippmError, ValueError):
    """A file of the set cannot be read."""


class StorageError(DippmError, OSError):
    """A row or shard cannot be written."""

    def __str__(self) -> str:
        return DippmError.__str__(self)
