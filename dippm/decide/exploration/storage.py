"""`open_study`: opens or creates a study in a storage of Optuna."""

from __future__ import annotations

from typing import Any

from dippm.decide.exploration.errors import ExploreError, ExploreNotInstalledError

STORAGES = (
    'Give an address, for instance storage="sqlite:///search.db" or '
    '"postgresql+psycopg://user@host/database".'
)
ATTEMPTS = 5
"""Attempts to create the tables of a database while another search creates them too."""


def open_study(optuna: Any, storage: Any, name: str, directions: list[str]) -> Any:
    """Return a study of the storage, created if it does not exist.

    Args:
        optuna: Optuna's module.
        storage: an address, a storage object, or None for a study in memory.
        name: name of the study.
        directions: "minimize" or "maximize" for each objective of a new study.

    Raises:
        ExploreNotInstalledError: if the driver of the database is not installed.
        ExploreError: if the storage cannot be opened.
    """
    if isinstance(storage, str) and "://" not in storage:
        raise ExploreError(f"{storage!r} is not the address of a storage", STORAGES)
    try:
        if isinstance(storage, str):
            storage = _tables(optuna, storage)
        return optuna.create_study(
            study_name=name, storage=storage, directions=directions, load_if_exists=True
        )
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name or "a driver"
        raise ExploreNotInstalledError(
            f"this storage needs {missing}, which is not installed",
            'Install the driver of the database; PostgreSQL\'s: pip install "dippm[postgresql]".',
        ) from error
    except Exception as error:
        words = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ExploreError(f"the storage cannot be opened: {words}", STORAGES) from error


def _tables(optuna: Any, address: str) -> Any:
    """Return the storage of an address, with its tables.

    Optuna checks for a table and then creates it: of two searches that start together in an empty
    database, one fails because the other was faster, and succeeds when it tries again.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            storage = optuna.storages.RDBStorage(address)
            break
        except Exception as error:
            if not (left and _met_another(error)):
                raise
    if address.startswith("sqlite"):
        _write_ahead(storage.engine)
    return storage


def _met_another(error: Exception) -> bool:
    """Return whether a table or a row could not be created because another process just did so."""
    from sqlalchemy import exc

    is_internal = type(error).__name__ == "StorageInternalError"  # from the commit of a row
    cause = error.__cause__ if is_internal and error.__cause__ else error
    return isinstance(cause, exc.IntegrityError) or (
        isinstance(cause, exc.DatabaseError) and "already exists" in str(cause)
    )


def _write_ahead(engine: Any) -> None:
    """Turn SQLite's write-ahead log on: a design is a dozen transactions, each a wait for the disk.

    Stored outcomes survive a kill of this process; a power cut may lose the last designs. The mode
    stays with the file, and SQLite does not wait to change it: of searches that start together one
    changes it, and the others go on without.
    """
    from sqlite3 import OperationalError

    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            if "locked" not in str(error):
                raise
        connection.execute("PRAGMA synchronous = NORMAL")

    engine.dispose()  # closes connections from before the setting
