"""`connect`: open the runs of a store, with its schema in place and our own errors."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dippm.base.progress import stage, tell
from dippm.errors import StoreError, UnknownNameError
from dippm.runs.store.location import STORE_VARIABLE, StoreLocation, locate_store
from dippm.runs.store.tables import tables_of
from dippm.runs.store.through_mlflow import ThroughMlflow

if TYPE_CHECKING:
    from dippm.runs.store.query import Clause, RunEntry
    from dippm.runs.store.run_contents import LoggedMetric

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "PGCONNECT_TIMEOUT": "10",
}
"""MLflow's timeouts, shortened: the spool keeps a run, so nothing has to wait for a store."""
INSTALL = "Install it: pip install 'dippm[track]'."
DRIVERS = {"boto3": "boto3", "psycopg": "'dippm[postgresql]'", "psycopg2": "psycopg2-binary"}
"""Additional packages that some stores need."""
LOCKS = {"postgresql": "SELECT pg_advisory_lock(7227716)", "mysql": "SELECT GET_LOCK('dippm', 60)"}
LATER = "The run is kept; `dippm runs --attach` tries again."


class Runs(Protocol):
    """Access of `RunStore` to runs in MLflow: `Tables` or `ThroughMlflow`.

    All writes are idempotent. Methods raise the errors of the driver or of MLflow; `failures_of`
    turns them into a `StoreError`.
    """

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Write everything inside atomically, if the store supports it."""
        ...

    def find(self, clauses: Iterable[Clause], experiment: str | None = None) -> Iterator[RunEntry]:
        """Yield runs, newest first.

        Args:
            clauses: conditions that all have to hold.
            experiment: exact name of an experiment.
        """
        ...

    def create(self, experiment: str, start_ms: int, tags: Mapping[str, str], name: str) -> str:
        """Create a run, and its experiment if missing; return its id."""
        ...

    def log(
        self,
        id_: str,
        metrics: Iterable[LoggedMetric],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Write metrics, params and tags of a run; a later tag of the same name wins."""
        ...

    def end(self, id_: str, status: str, end_ms: int) -> None:
        """Record MLflow's status of an ended run, and the time in milliseconds since 1970."""
        ...

    def delete(self, id_: str) -> None:
        """Delete a run, as MLflow does."""
        ...

    def put(self, id_: str, folder: Path, under: str = "") -> None:
        """Store the files of a folder as artifacts of a run, in a subfolder of them."""
        ...

    def fetch(self, id_: str, path: str, into: Path) -> Path | None:
        """Copy an artifact, a file or a folder, into a folder; return None if it does not exist."""
        ...


class StoreNotInstalledError(StoreError, ImportError):
    """The libraries of the store are not installed."""


def connect(location: StoreLocation) -> Runs:
    """Return the runs of a store, without MLflow if possible; a new database gets its tables.

    Raises:
        StoreNotInstalledError: if MLflow, or the driver of the database, is missing.
        StoreError: if the store cannot be reached or opened.
    """
    os.environ.update(SETTINGS)
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    tell("opening the store of runs")
    with failures_of(location, "cannot open"):
        if location.file is not None:
            _make_file(location.file, location)
        if tables := tables_of(location):
            return tables
        from mlflow.tracking import MlflowClient

        _hush()
        is_database = location.file is None and location.artifacts is not None
        with _alone_in(location.uri) if is_database else contextlib.nullcontext():
            client = MlflowClient(tracking_uri=location.uri)  # creates the tables
        return tables_of(location) or ThroughMlflow(location, client)


@contextlib.contextmanager
def failures_of(location: StoreLocation, verb: str) -> Iterator[None]:
    """Turn errors of MLflow and of the libraries below it into a `StoreError`."""
    try:
        yield
    except (StoreError, UnknownNameError):
        raise
    except ImportError as error:
        named = error.name or str(error)
        hint = f"Install it: pip install {DRIVERS[named]}." if named in DRIVERS else INSTALL
        raise StoreNotInstalledError(f"the store of runs needs {named}", hint) from error
    except Exception as error:  # errors of databases, HTTP and S3 pass through MLflow
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = LATER
        if "schema" in str(error) and "upgrade" in str(error):
            hint = f"Run `mlflow db upgrade {location.shown()}` after a backup."
        raise StoreError(f"{verb} {location.shown()}: {reason[:500]}", hint) from error


def _make_file(path: Path, location: StoreLocation) -> None:
    """Create the tables in a SQLite file, atomically.

    MLflow in the workload may open the same new file at any time, so the file is never replaced:
    the tables are created elsewhere and written in one transaction, under the lock that MLflow's
    own processes use.
    """
    if _is_begun(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = _kept_tables()
    with stage("making the tables of a new store, once"):
        if kept is not None and kept.exists():
            with contextlib.suppress(sqlite3.DatabaseError):  # a damaged cache is created anew
                _write_tables(kept, path, location)
                return
        with tempfile.TemporaryDirectory(prefix="dippm-store-") as scratch:
            part = Path(scratch) / "part.db"
            try:
                # Without holding a lock: at the lowest priority this can take minutes.
                _make_tables(f"sqlite:///{part}", location.artifacts or "")
            finally:
                _mlflow_lock(f"sqlite:///{part}").unlink(missing_ok=True)
            _write_tables(part, path, location)
            if kept is not None:
                _keep(part, kept)


def _kept_tables() -> Path | None:
    """Return the path of cached tables of the installed MLflow: creating them takes seconds.

    None if the version of MLflow is unknown.
    """
    from importlib.metadata import PackageNotFoundError, version

    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dippm"
    folder = Path(os.environ.get("DIPPM_CACHE_DIR") or base).expanduser() / "tables"
    for name in ("mlflow-skinny", "mlflow"):
        with contextlib.suppress(PackageNotFoundError):
            return folder / f"mlflow-{version(name)}.db"
    return None


def _keep(part: Path, kept: Path) -> None:
    """Cache tables for the next store, atomically."""
    partial = kept.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):  # without a cache they are created again
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(part, partial)
        os.replace(partial, kept)


def _is_begun(path: Path) -> bool:
    """Return whether a file has tables; MLflow creates the missing ones."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            raise StoreError(f"{path} is no SQLite file", "Name another file: store=runs.db")
    return True


@contextlib.contextmanager
def _mlflow_waits(path: Path, location: StoreLocation) -> Iterator[None]:
    """Hold MLflow's locks of a file, one for each spelling of its address in use here."""
    spellings = {location.uri}
    given = os.environ.get(STORE_VARIABLE, "")
    with contextlib.suppress(StoreError):
        if "://" in given and locate_store(given).file == path:
            spellings.add(given)
    with contextlib.ExitStack() as locks:
        for lock in sorted(map(_mlflow_lock, spellings)):
            fcntl.flock(locks.enter_context(lock.open("w")), fcntl.LOCK_EX)
        yield


def _mlflow_lock(uri: str) -> Path:
    """Return the lock file of MLflow for creating the tables of an address."""
    digits = hashlib.md5(uri.encode(), usedforsecurity=False).hexdigest()
    return Path(tempfile.gettempdir()) / f"db_init_lock-{digits}"


def _write_tables(part: Path, path: Path, location: StoreLocation) -> None:
    """Copy tables into a file in one transaction, unless another process has created some."""
    with (
        _mlflow_waits(path, location),
        contextlib.closing(sqlite3.connect(part)) as made,
        contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as new,
    ):
        new.execute("BEGIN EXCLUSIVE")
        if not new.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in made.iterdump():
                if statement not in ("BEGIN TRANSACTION;", "COMMIT;"):
                    new.execute(statement)
            # The first experiment belongs to the process that created the tables.
            values = (f"{location.artifacts}/0", time.time_ns() // 1_000_000)
            new.execute(
                "UPDATE experiments SET artifact_location = ?1, creation_time = ?2,"
                " last_update_time = ?2 WHERE experiment_id = 0",
                values,
            )
        new.execute("COMMIT")


def _make_tables(uri: str, artifacts: str) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    _hush()
    SqlAlchemyStore(uri, artifacts).engine.dispose()


def _hush() -> None:
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we report errors ourselves


@contextlib.contextmanager
def _alone_in(uri: str) -> Iterator[None]:
    """Lock table creation against other processes, in databases with such locks.

    It connects first, and only once: MLflow itself would retry for minutes.
    """
    from sqlalchemy import create_engine, text

    engine = create_engine(uri)
    try:
        with engine.connect() as connection:
            if lock := LOCKS.get(engine.dialect.name):
                connection.execute(text(lock))  # held until the connection is closed
            yield
    finally:
        engine.dispose()
