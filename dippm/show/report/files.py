"""Writing what a command was asked to write."""

from __future__ import annotations

from pathlib import Path

from dippm.base import files
from dippm.errors import DippmError


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        DippmError: if the file cannot be written.
    """
    path = files.expanded(path)
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DippmError(f"cannot write {path}: {reason}", "Choose another place.") from (error)
