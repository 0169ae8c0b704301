"""The location of the measured tables."""

from __future__ import annotations

import os
from pathlib import Path

from dippm.errors import DippmError

ENVIRONMENT_VARIABLE = "DIPPM_DATA_DIR"
REPOSITORY = Path(__file__).resolve().parents[2]


class DataNotFoundError(DippmError, FileNotFoundError):
    """A table of measurements is not on this machine."""


def named_data_dir(option: Path | str | None = None) -> Path:
    """Return the folder of the measured tables, which may not exist.

    Args:
        option: the folder from the user; None for the environment variable DIPPM_DATA_DIR, or
            "../shared/data" next to the repository.
    """
    named = option or os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named) if named else REPOSITORY.parent / "shared" / "data"


def data_dir(option: Path | str | None = None) -> Path:
    """Return the folder of the measured tables, see `named_data_dir`.

    Raises:
        DataNotFoundError: if there is no such folder.
    """
    folder = named_data_dir(option)
    if not folder.is_dir():
        raise DataNotFoundError(
            f"no folder {folder}",
            "`python -m dataset.fetch` gets the tables; name another folder with --data-dir or"
            f" {ENVIRONMENT_VARIABLE}.",
        )
    return folder


def table_path(data: Path, source: str, file: str) -> Path:
    """Return the path of a table of a source.

    Args:
        data: folder of the measured tables.
        source: folder of the source below it.
        file: file name in that folder.

    Raises:
        DataNotFoundError: if it does not exist, naming the command that fetches it.
    """
    path = data / source / file
    if not path.is_file():
        raise DataNotFoundError(f"no file {path}", f"`python -m dataset.fetch {source}` gets it.")
    return path
