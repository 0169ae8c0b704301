"""Writes the output files of commands."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from dippm.base import files
from dippm.errors import DippmError


def write_text(path: str | PathLike[str], text: str) -> None:
    """Write a file.

    Raises:
        DippmError: if the file cannot be written.
    """
    file = Path(files.expand_home(path))
    try:
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise DippmError(f"cannot write {file}: {reason}", "Choose another place.") from error
