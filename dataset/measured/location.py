"""Where the measured tables lie."""

from __future__ import annotations

import os
from pathlib import Path

from dippm.errors import DippmError

ENVIRONMENT_VARIABLE = "DIPPM_DATA_DIR"
REPOSITORY = Path(__file__).resolve().parents[2]


class DataNotFoundError(DippmError, FileNotFoundError):
    """A table of measurements is not on this machine."""


def data_dir(option: Path | str | None = None) -> Path:
    """Return the folder of the measured tables.

    Args:
        option: the folder if the user named one; else the environment variable DIPPM_DATA_DIR,
            else "../shared/data" beside the repository.

    Raises:
        DataNotFoundError: if there is no such folder.
    """
    named = option or os.environ.get(ENVIRONMENT_VARIABLE)
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        raise DataNotFoundError(
            f"no folder {folder}",
            f"Name it with --data-dir or {ENVIRONMENT_VARIABLE}; dataset/README.md says where to"
            " get each table.",
        )
    return folder
