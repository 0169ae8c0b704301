"""Errors of collected sets."""

from __future__ import annotations

from dippm.errors import DippmError


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
