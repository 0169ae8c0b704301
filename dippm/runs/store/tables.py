"""`Tables`: runs in MLflow's own tables in SQLite or PostgreSQL, without MLflow.

Importing MLflow takes more than a second of CPU time, whenever a run is attached or runs are
listed. Its tables of runs are few and simple, so they are read and written here if their schema
version is known; others are left to MLflow, see `dippm.runs.store.through_mlflow`. The rows are
those that MLflow's client would write, in one transaction for many runs. The methods are those of
`dippm.runs.store.client.Runs`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dippm.errors import StoreError
from dippm.runs.store.query import Clause, RunEntry, experiment_folder

if TYPE_CHECKING:
    from dippm.runs.store.location import StoreLocation
    from dippm.runs.store.run_contents import LoggedMetric
    from dippm.runs.store.through_mlflow import ThroughMlflow

KNOWN = frozenset({"dc11669786a5"})
"""Alembic versions of MLflow's schema whose tables of runs have the columns used here: that of
MLflow 3.17. Others may be added after comparing their columns."""
WORKSPACES_VARIABLE = "MLFLOW_ENABLE_WORKSPACES"
BUSY_S = 20.0
"""How long to wait for a file that another process writes, as MLflow does."""
PAGE = 200
DRIVERS = ("postgresql", "postgresql+psycopg")
ALONE = "SELECT pg_advisory_xact_lock(7227717)"
ARTIFACTS = "artifacts"


def tables_of(location: StoreLocation) -> Tables | None:
    """Return the tables of a store; None if they are missing or unknown, or without a driver.

    Raises:
        Exception: error of the driver if the database cannot be read.
    """
    is_postgresql = location.uri.partition("://")[0] in DRIVERS
    if location.file is None and not (is_postgresql and find_spec("psycopg")):
        return None
    if os.environ.get(WORKSPACES_VARIABLE, "").casefold() in ("true", "1"):
        return None
    tables = Tables(location)
    return tables if tables.version() in KNOWN else None


class Tables:
    """Runs in the tables of a store.

    Args:
        location: an existing SQLite file, or a PostgreSQL database.
    """

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._held = threading.local()
        self._client: ThroughMlflow | None = None

    def version(self) -> str:
        """Return the version of the schema; "" without one."""
        is_there = "FROM sqlite_master WHERE name = 'alembic_version'"
        if self._location.file is None:
            is_there = "WHERE to_regclass('alembic_version') IS NOT NULL"
        with self._session() as run:
            if not list(run(f"SELECT 1 {is_there}")):
                return ""
            return str(next(iter(run("SELECT version_num FROM alembic_version")), ("",))[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside atomically."""
        with self._connection() as connection:
            self._held.connection = connection
            try:
                if self._location.file is None:
                    with connection.transaction():
                        connection.execute(ALONE)
                        yield
                    return
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    connection.rollback()
                    raise
                connection.execute("COMMIT")
            finally:
                self._held.connection = None

    def find(self, clauses: Iterable[Clause], experiment: str | None = None) -> Iterator[RunEntry]:
        """Yield runs, newest first; see `Runs.find`."""
        conditions = ["e.lifecycle_stage = 'active'", "e.workspace = 'default'"]
        given: list[str | float] = []
        if experiment is not None:
            conditions.append("e.name = ?")
            given.append(experiment)
        for clause in clauses:
            table = "tags" if clause.kind == "tags" else "latest_metrics"
            there = f"SELECT run_uuid FROM {table} WHERE key = ? AND value {clause.relation} ?"
            conditions.append(f"r.run_uuid IN ({there})")
            given += [clause.name, clause.value]
        found = (
            "SELECT r.run_uuid, r.start_time, e.name FROM runs r JOIN experiments e"
            " ON e.experiment_id = r.experiment_id"
            f" WHERE r.lifecycle_stage = 'active' AND {' AND '.join(conditions)}"
            " ORDER BY r.start_time DESC, r.run_uuid"
        )
        with self._session() as run:
            rows = list(run(found, given))
        for first in range(0, len(rows), PAGE):
            with self._session() as run:
                page = _page(run, rows[first : first + PAGE])
            yield from page

    def create(self, experiment: str, start_ms: int, tags: Mapping[str, str], name: str) -> str:
        """Create a run, and its experiment if missing; return its id."""
        id_ = uuid.uuid4().hex
        with self._session() as run:
            number, location = self._experiment(run, experiment)
            run(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name,"
                " user_id, status, start_time, source_version, lifecycle_stage, artifact_uri,"
                " experiment_id) VALUES (?, ?, 'UNKNOWN', '', '', 'unknown', 'RUNNING', ?, '',"
                " 'active', ?, ?)",
                (id_, name, start_ms, f"{location.rstrip('/')}/{id_}/{ARTIFACTS}", number),
            )
        self.log(id_, (), {}, {**tags, "mlflow.runName": name})
        return id_

    def log(
        self,
        id_: str,
        metrics: Iterable[LoggedMetric],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Write metrics, params and tags of a run; existing ones stay as they are."""
        points = [(m.key, *_number(m.value), m.timestamp, m.step, id_) for m in metrics]
        latest: dict[str, tuple[Any, ...]] = {}
        for point in points:
            before = latest.get(point[0])
            if before is None or _order(point) > _order(before):
                latest[point[0]] = point
        columns = "(key, value, is_nan, timestamp, step, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
        newer = "(excluded.step, excluded.timestamp, excluded.value)"
        older = "(latest_metrics.step, latest_metrics.timestamp, latest_metrics.value)"
        new = ", ".join(f"{name} = excluded.{name}" for name in _LATEST)
        with self._session(many=True) as run:
            run(f"INSERT INTO metrics {columns} ON CONFLICT DO NOTHING", points)
            run(
                f"INSERT INTO latest_metrics {columns} ON CONFLICT (key, run_uuid)"
                f" DO UPDATE SET {new} WHERE {newer} > {older}",
                list(latest.values()),
            )
            run(
                "INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                [(key, value, id_) for key, value in params.items()],
            )
            run(
                "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)"
                " ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value",
                [(key, value, id_) for key, value in tags.items()],
            )

    def end(self, id_: str, status: str, end_ms: int) -> None:
        """Record how and when a run ended."""
        with self._session() as run:
            run(
                "UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", (status, end_ms, id_)
            )

    def delete(self, id_: str) -> None:
        """Delete a run, as MLflow does."""
        with self._session() as run:
            run(
                "UPDATE runs SET lifecycle_stage = 'deleted', deleted_time = ? WHERE run_uuid = ?",
                (_now_ms(), id_),
            )

    def put(self, id_: str, folder: Path, under: str = "") -> None:
        """Store the files of a folder as artifacts of a run."""
        root = self._artifacts(id_)
        if root is None:
            self._mlflow().put(id_, folder, under)
        else:
            shutil.copytree(folder, root / under, dirs_exist_ok=True)

    def fetch(self, id_: str, path: str, into: Path) -> Path | None:
        """Copy an artifact, a file or a folder, into a folder; return None if it does not exist."""
        root = self._artifacts(id_)
        if root is None:
            return self._mlflow().fetch(id_, path, into)
        held = (root / path).resolve()
        if not held.is_relative_to(root.resolve()):
            raise StoreError(f"{path!r} leads out of the run", "Its record is damaged.")
        if not held.exists():
            return None
        copy = into / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if held.is_dir():
            shutil.copytree(held, copy, dirs_exist_ok=True)
        else:
            shutil.copyfile(held, copy)
        return copy

    def _artifacts(self, id_: str) -> Path | None:
        """Return the folder of a run's artifacts; None if a server holds them."""
        with self._session() as run:
            rows = list(run("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (id_,)))
        uri = str(rows[0][0]) if rows else ""
        parts = urlsplit(uri)
        if parts.scheme == "" and uri:
            return Path(uri)
        is_here = parts.scheme == "file" and parts.netloc in ("", "localhost")
        return Path(unquote(parts.path)) if is_here and not parts.query else None

    def _mlflow(self) -> ThroughMlflow:
        if self._client is None:
            from dippm.runs.store.through_mlflow import ThroughMlflow

            self._client = ThroughMlflow(self._location)
        return self._client

    def _experiment(self, run: Any, name: str) -> tuple[int, str]:
        """Return id and artifact location of an experiment, which is created or restored."""
        asked = (
            "SELECT experiment_id, artifact_location, lifecycle_stage FROM experiments"
            " WHERE name = ? AND workspace = 'default'"
        )
        rows = list(run(asked, (name,)))
        if not rows:
            where = f"{self._location.artifacts}/{experiment_folder(name)}"
            made = (name, where, _now_ms(), _now_ms())
            run(
                "INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time,"
                " last_update_time, workspace) VALUES (?, ?, 'active', ?, ?, 'default')"
                " ON CONFLICT DO NOTHING",  # another process may have been faster
                made,
            )
            rows = list(run(asked, (name,)))
        number, where, stage = rows[0]
        if stage != "active":
            run(
                "UPDATE experiments SET lifecycle_stage = 'active', last_update_time = ?"
                " WHERE experiment_id = ?",
                (_now_ms(), number),
            )
        return int(number), str(where)

    @contextlib.contextmanager
    def _session(self, *, many: bool = False) -> Iterator[Any]:
        """Yield a function that runs a statement, in the open transaction if there is one.

        Args:
            many: whether statements insert many rows at once.
        """
        held = getattr(self._held, "connection", None)
        with contextlib.nullcontext(held) if held is not None else self._connection() as connection:
            mark = "?" if self._location.file is not None else "%s"

            def run(statement: str, given: Sequence[Any] = ()) -> Any:
                statement = statement.replace("?", mark)
                if not many:
                    return connection.execute(statement, given)
                if given:
                    connection.cursor().executemany(statement, given)
                return ()

            if held is None and many:  # one transaction, instead of one per row
                with self.transaction(), self._session(many=True) as inside:
                    yield inside
            else:
                yield run

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        """Yield a new connection: the file may be replaced at any time."""
        if self._location.file is not None:
            # "rw": a missing file is an error, instead of being created.
            uri = f"{self._location.file.as_uri()}?mode=rw"
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
            ) as file:
                file.execute("PRAGMA foreign_keys = ON")
                file.execute("PRAGMA case_sensitive_like = true")
                yield file
            return
        import psycopg

        address = self._location.uri.replace("postgresql+psycopg://", "postgresql://", 1)
        with psycopg.connect(address, autocommit=True) as server:
            yield server


_LATEST = ("value", "is_nan", "timestamp", "step")


def _page(run: Any, rows: Sequence[Sequence[Any]]) -> list[RunEntry]:
    """Return the runs of some rows (at least one), with their tags, metrics and params."""
    ids = [id_ for id_, _, _ in rows]
    of_them = f"WHERE run_uuid IN ({', '.join('?' * len(ids))})"
    tags: dict[str, dict[str, str]] = {id_: {} for id_ in ids}
    params: dict[str, dict[str, str]] = {id_: {} for id_ in ids}
    metrics: dict[str, dict[str, float]] = {id_: {} for id_ in ids}
    for table, held in (("tags", tags), ("params", params)):
        for id_, key, text in run(f"SELECT run_uuid, key, value FROM {table} {of_them}", ids):
            held[id_][key] = text
    numbers = f"SELECT run_uuid, key, value, is_nan FROM latest_metrics {of_them}"
    for id_, key, value, is_nan in run(numbers, ids):
        metrics[id_][key] = math.nan if is_nan else value
    return [
        RunEntry(id_, experiment, start_ms or 0, tags[id_], metrics[id_], params[id_])
        for id_, start_ms, experiment in rows
    ]


def _number(value: float) -> tuple[float, bool]:
    """Return a number as MLflow's columns hold it, and whether it is NaN."""
    if math.isnan(value):
        return 0.0, True
    return max(-sys.float_info.max, min(sys.float_info.max, float(value))), False


def _order(point: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return MLflow's sort key for the last point of a metric."""
    _, value, _, timestamp, step, _ = point
    return step, timestamp, value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
