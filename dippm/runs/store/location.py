"""The location of a store: its address, and that of its artifacts.

sqlite:////home/me/runs.db     a file, by default the user's; artifacts in a folder beside it
postgresql://...               a database; artifacts at $MLFLOW_DEFAULT_ARTIFACT_ROOT
https://...                    an MLflow server, which manages its artifacts
runs.db                        a path means a SQLite file
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dippm.errors import StoreError

STORE_VARIABLE = "MLFLOW_TRACKING_URI"
ARTIFACTS_VARIABLE = "MLFLOW_DEFAULT_ARTIFACT_ROOT"
SERVERS = ("http", "https", "databricks")
HINT = "Name a store: --store runs.db, postgresql://USER@HOST/NAME or https://HOST."


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A parsed address.

    Attributes:
        uri: address in MLflow's form.
        file: path of the SQLite file, None for other stores.
        artifacts: location of the artifacts of new experiments; None if a server decides.
    """

    uri: str
    file: Path | None = None
    artifacts: str | None = None

    def shown(self) -> str:
        """Return the address without its password."""
        return re.sub(r"^([\w.+-]*://[^/@:]*):[^@]*@", r"\1:***@", self.uri)

    def is_new(self) -> bool:
        """Return whether it is a file that does not exist yet."""
        if self.file is None:
            return False
        try:
            self.file.stat()
        except FileNotFoundError:
            return True
        except OSError:
            pass  # opening it gives the error
        return False


def locate_store(store: str | None = None) -> StoreLocation:
    """Return the location of a store.

    Args:
        store: address or path; by default that of `$MLFLOW_TRACKING_URI`, else the user's file.

    Raises:
        StoreError: if the address is invalid, or the location of its artifacts is missing.
    """
    given = store or os.environ.get(STORE_VARIABLE) or str(_of_the_user())
    artifacts = os.environ.get(ARTIFACTS_VARIABLE) or None
    scheme, colon, rest = given.partition("://")
    if not colon:
        return _in_file(Path(given), artifacts)
    dialect = scheme.partition("+")[0]
    if dialect == "sqlite":
        return _in_file(Path(rest.partition("?")[0][1:] or "/"), artifacts)
    if dialect in SERVERS:
        return StoreLocation(given)
    if dialect == "file":
        raise StoreError(f"{given}: folders of files are no longer a valid store", HINT)
    if dialect in ("postgresql", "mysql", "mssql"):
        if artifacts is None:
            raise StoreError(
                f"{StoreLocation(given).shown()} does not say where samples go",
                f"Set {ARTIFACTS_VARIABLE}, for instance to s3://bucket/folder.",
            )
        return StoreLocation(given, None, artifacts)
    raise StoreError(f"{StoreLocation(given).shown()} is not the address of a store", HINT)


def _in_file(path: Path, artifacts: str | None) -> StoreLocation:
    path = path.expanduser().absolute()
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a file of runs", HINT)
    beside = path.with_name(f"{path.stem}-artifacts")
    return StoreLocation(f"sqlite:///{path}", path, artifacts or beside.as_uri())


def _of_the_user() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "dippm" / "runs.db"
