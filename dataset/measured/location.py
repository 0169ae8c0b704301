"""Where the measured tables lie."""

from __future__ import annotations

import os
from pathlib import Path

from dippm.errors import DippmError

ENVIRONMENT_VARIABLE = "DIPPM_DATA_DIR"
REPOSITORY = Path(__file__).resolve().parents[2]


class DataNotFoundError(DippmError, FileNotFoundError):
    """A table of measurements is not on this machine."""


def named_data_dir(option: Path | str | None = None) -> Path:
    """Return the folder of the measured tables, whether it is there or not.

    Args:
        option: the folder if the user named one; else the environment variable DIPPM_DATA_DIR,
            else "../shared/data" beside the repository.
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
    """Return where a table of a source lies.

    Args:
        data: folder of the measured tables.
        source: its folder below.
        file: in that folder.

    Raises:
        DataNotFoundError: if it is not there; names the command that gets it.
    """
    path = data / source / file
    if not path.is_file():
        raise DataNotFoundError(f"no file {path}", f"`python -m dataset.fetch {source}` gets it.")
    return path
