"""`RunStore`: runs in MLflow.

A run is attached in idempotent steps: MLflow's run is found by its tag `dippm.uuid` or created with
it, equal metrics and params are not duplicated, artifacts are overwritten, and the tag
`dippm.complete` comes last. So an interrupted attach continues where it stopped, no run is
duplicated, and lists show complete runs only. Runs are attached in batches where the store has
transactions: a batch then costs little more than one run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.base.progress import stage, tell
from dippm.errors import DippmError, RunError, UnknownNameError
from dippm.runs.store.client import Runs, connect, failures_of
from dippm.runs.store.folder import ARTIFACTS, read_folder
from dippm.runs.store.location import StoreLocation, locate_store
from dippm.runs.store.parquet import write_samples
from dippm.runs.store.query import (
    COMPLETE,
    UUID,
    Clause,
    Condition,
    RunEntry,
    check_length,
    holds,
    mlflow_text,
    run_fields,
)
from dippm.runs.store.record import NOTHING, RUN_TAG, Start
from dippm.runs.store.run_contents import (
    LoggedMetric,
    RunContents,
    gather,
    logged_metrics,
    logged_params,
    logged_tags,
)
from dippm.runs.store.stored_run import DOCUMENTS, RECORD, SAMPLES, StoredRun

COMPLETED = Clause("tags", COMPLETE, "=", "1")
KNOWN_OF = 100
"""Number of runs whose metrics are searched for a suggestion."""
PARENT = "mlflow.parentRunId"
TERMINAL = {"finished": "FINISHED", "interrupted": "KILLED"}


class RunStore:
    """The attached runs.

    Attributes:
        location: location of the store.
    """

    def __init__(self, location: StoreLocation, runs: Runs) -> None:
        self.location = location
        self._runs = runs
        self._fetched = tempfile.TemporaryDirectory(prefix="dippm-runs-")

    def attach(self, folder: Path) -> StoredRun:
        """Attach a run exactly once, however often this is called or interrupted.

        Raises:
            RunError: if the folder holds no run.
            StoreError: if the store cannot be reached or written; the folder is left as it is.
        """
        outcome = self.attach_many([folder])[folder]
        if isinstance(outcome, DippmError):
            raise outcome
        return outcome

    def attach_many(
        self, folders: Iterable[Path], *, wait: bool = True
    ) -> dict[Path, StoredRun | DippmError]:
        """Attach runs together; return the result for each.

        Args:
            folders: folders of ended runs, as many as may be in memory at once.
            wait: whether to wait for a folder that another process is attaching; else it is left
                out.
        """
        with contextlib.ExitStack() as locks, stage("attaching runs"):
            # In sorted order, so that two processes cannot deadlock.
            return self._attach([f for f in sorted(folders) if _lock_folder(f, locks, wait)])

    def _attach(self, folders: Sequence[Path]) -> dict[Path, StoredRun | DippmError]:
        """Attach folders whose locks are held; a failure does not affect the others."""
        outcome: dict[Path, StoredRun | DippmError] = {}
        gathered: dict[Path, RunContents] = {}
        unread: DippmError | None = None
        for folder in folders:
            if unread is not None:  # do not wait for an unreachable server once per run
                outcome[folder] = unread
                continue
            try:
                uuid = read_folder(folder).start.uuid
                try:
                    with failures_of(self.location, "cannot read"):
                        found = self._find_uuid(uuid)
                except DippmError as error:
                    unread = error
                    raise
                with failures_of(self.location, "cannot write the run to"):
                    if found is not None and COMPLETE in found.tags:
                        outcome[folder] = self._to_stored_run(found)
                    else:
                        gathered[folder] = gather(folder)
            except DippmError as error:
                outcome[folder] = error
        try:
            with failures_of(self.location, "cannot write the run to"):
                self._write(list(gathered.values()))
                for folder, contents in gathered.items():
                    found = self._find_uuid(contents.recorded.start.uuid)
                    assert found is not None
                    outcome[folder] = self._to_stored_run(found)
        except DippmError as error:
            if len(gathered) > 1:
                return outcome | {f: self._attach([f])[f] for f in gathered}
            outcome |= dict.fromkeys(gathered, error)
        return outcome

    def runs(
        self,
        search: str = "",
        *,
        experiment: str | None = None,
        status: str | None = None,
        where: Sequence[str] = (),
        limit: int = 100,
        beside: Iterable[StoredRun] = (),
    ) -> list[StoredRun]:
        """Return runs, newest first.

        Args:
            search: words that name, description, experiment, params, tags or uuid contain, ignoring
                case; all of them.
            experiment: exact name of an experiment.
            status: exact status.
            where: conditions such as "tree.rss_mb.max > 100" or "loss <= 0.1".
            limit: most runs to return.
            beside: runs of `run_of_folder`, listed too unless the store has them.

        Raises:
            RunError: if a condition is invalid, or a text too long.
            UnknownNameError: if no run of the store has the metric of a condition.
            StoreError: if the store cannot be read.
        """
        check_length(search)
        parsed = [Condition.parse(condition) for condition in where]
        clauses = [COMPLETED, *(condition.clause() for condition in parsed)]
        named = None if experiment is None else mlflow_text(experiment, 250)
        with failures_of(self.location, "cannot read"):
            found = (
                run
                for run in map(self._to_stored_run, self._runs.find(clauses, named))
                if holds(run.words, search) and status in (None, run.status)
            )
            runs = [run for run, _ in zip(found, range(limit), strict=False)]
            stored = {run.uuid for run in runs}
            runs += [
                run
                for run in beside
                if run.uuid not in stored
                and holds(run.words, search)
                and status in (None, run.status)
                and experiment in (None, run.experiment)
                and all(condition.holds(run.metrics) for condition in parsed)
            ]
            runs = sorted(runs, key=lambda run: run.wall_ns, reverse=True)[:limit]
            if not runs:
                for condition in parsed:
                    self._check_known(condition)
            return runs

    def _check_known(self, condition: Condition) -> None:
        """Raise if there are runs, but none with the metric of a condition."""
        both = (replace(condition, relation=relation, number=0.0) for relation in ("<", ">="))
        for either in both:
            if next(self._runs.find([COMPLETED, either.clause()]), None) is not None:
                return
        known = {
            name
            for run, _ in zip(self._runs.find([COMPLETED]), range(KNOWN_OF), strict=False)
            for name in run_fields(run)["metrics"]
        }
        if known:
            raise UnknownNameError.of("metric of runs", condition.metric, known)

    def run(self, uuid: str, beside: Iterable[StoredRun] = ()) -> StoredRun:
        """Return a run by its uuid or a unique prefix.

        Args:
            uuid: uuid or prefix.
            beside: runs of `run_of_folder`, searched too.

        Raises:
            RunError: if there is no such run, or several.
            StoreError: if the store cannot be read.
        """
        hint = "`dippm runs` lists them."
        prefix = uuid.strip().casefold()
        if not prefix or set(prefix) - set("0123456789abcdef"):
            raise RunError(f"{uuid!r} is not the UUID of a run", hint)
        clauses = [Clause("tags", UUID, "LIKE", f"{prefix}%"), COMPLETED]
        with failures_of(self.location, "cannot read"):
            rows = zip(self._runs.find(clauses), range(3), strict=False)
            found = {run.uuid: run for run in beside if run.uuid.startswith(prefix)}
            found |= {run.uuid: run for run in (self._to_stored_run(row) for row, _ in rows)}
            if not found:
                raise RunError(f"there is no run {prefix} in {self.location.shown()}", hint)
            if len(found) > 1:
                raise RunError(f"several runs begin with {prefix}", "Give more of its uuid.")
            return next(iter(found.values()))

    def keep(
        self, run: StoredRun, name: str, document: Any, figures: Mapping[str, float] = NOTHING
    ) -> None:
        """Store a document with a run, and its key figures as metrics.

        Args:
            run: run of this store.
            name: identifier of the document: "comparison" is `StoredRun.comparison`.
            document: JSON data.
            figures: key figures by name; a later value of the same name wins.

        Raises:
            StoreError: if the store cannot be written.
        """
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no identifier")
        with (
            failures_of(self.location, "cannot write to"),
            tempfile.TemporaryDirectory(prefix="dippm-keep-") as scratch,
        ):
            file = Path(scratch) / f"{name}.json"
            file.write_text(json.dumps(document, default=str))
            self._runs.put(run.id, Path(scratch), DOCUMENTS)
            now_ms = time.time_ns() // 1_000_000
            kept = [
                LoggedMetric(f"{name}/{key}", value, now_ms, 0) for key, value in figures.items()
            ]
            self._runs.log(run.id, kept, {}, {})

    def forget(self, run: StoredRun) -> None:
        """Delete the local copies of a run's artifacts, for programs that read many runs."""
        shutil.rmtree(Path(self._fetched.name) / run.id, ignore_errors=True)

    def _write(self, gathered: Sequence[RunContents]) -> None:
        """Write runs in steps: first the entries, then artifacts, then everything else."""
        ids: dict[str, str] = {}
        with self._runs.transaction():
            for contents in gathered:
                start = contents.recorded.start
                found = self._find_uuid(start.uuid)
                if found is None or COMPLETE not in found.tags:
                    ids[start.uuid] = self._create(start) if found is None else found.id
        missing = [contents for contents in gathered if contents.recorded.start.uuid in ids]
        for contents in missing:
            self._put(contents, ids[contents.recorded.start.uuid])
        with self._runs.transaction():
            for contents in missing:
                self._log(contents, ids[contents.recorded.start.uuid])

    def _create(self, start: Start) -> str:
        return self._runs.create(
            mlflow_text(start.experiment or "default", 250),
            start.at.wall_ns // 1_000_000,
            {UUID: start.uuid},
            mlflow_text(start.name, 250) or start.uuid[:8],
        )

    def _put(self, gathered: RunContents, id_: str) -> None:
        with tempfile.TemporaryDirectory(prefix="dippm-attach-") as scratch:
            tell("writing samples")
            write_samples(gathered.columns, Path(scratch) / SAMPLES)
            record = json.dumps(gathered.document(), separators=(",", ":"), default=str)
            (Path(scratch) / RECORD).write_text(record)
            self._runs.put(id_, Path(scratch))
        if gathered.artifacts():
            tell("writing artifacts")
            self._runs.put(id_, gathered.recorded.path / ARTIFACTS, ARTIFACTS)

    def _log(self, gathered: RunContents, id_: str) -> None:
        start = gathered.recorded.start
        metrics, params = logged_metrics(gathered), logged_params(start)
        self._runs.log(id_, metrics, params, logged_tags(gathered))
        ended_ms = gathered.end.at.wall_ns // 1_000_000
        self._runs.end(id_, TERMINAL.get(gathered.end.status, "FAILED"), ended_ms)
        for beside in self._workload_runs(start.uuid):
            if PARENT not in beside.tags:  # MLflow's page then nests it below ours
                self._runs.log(beside.id, (), {}, {PARENT: id_})
        self._runs.log(id_, (), {}, {COMPLETE: "1"})

    def beside(self, run: StoredRun) -> tuple[str, ...]:
        """Return the ids of the workload's own MLflow runs in this store.

        Raises:
            StoreError: if the store cannot be read.
        """
        with failures_of(self.location, "cannot read"):
            return tuple(beside.id for beside in self._workload_runs(run.uuid))

    def _workload_runs(self, uuid: str) -> Iterator[RunEntry]:
        return self._runs.find([Clause("tags", RUN_TAG, "=", mlflow_text(uuid, 64))])

    def _find_uuid(self, uuid: str) -> RunEntry | None:
        """Return MLflow's run with a uuid; a retried request may have created several."""
        found = list(self._runs.find([Clause("tags", UUID, "=", mlflow_text(uuid, 64))]))
        found.sort(key=lambda run: (COMPLETE not in run.tags, run.id))
        for further in found[1:]:
            self._runs.delete(further.id)
        return found[0] if found else None

    def _to_stored_run(self, run: RunEntry) -> StoredRun:
        said = run_fields(run)

        def fetch(path: str) -> Path | None:
            with failures_of(self.location, f"cannot read {path} of run {said['uuid']} from"):
                into = Path(self._fetched.name) / run.id
                into.mkdir(exist_ok=True)
                return self._runs.fetch(run.id, path, into)

        experiment = said.pop("experiment") or run.experiment
        return StoredRun(**said, experiment=experiment, id=run.id, fetch=fetch)


def run_of_folder(folder: Path) -> StoredRun:
    """Return a run from the files of its folder, before it is in a store, as a list shows it.

    Raises:
        RunError: if the folder holds no run.
    """
    gathered = gather(folder)
    start = gathered.recorded.start
    scratch = tempfile.TemporaryDirectory(prefix="dippm-folder-")  # lives as long as `fetch`

    def fetch(path: str) -> Path | None:
        copy = Path(scratch.name) / path
        if path == RECORD:
            copy.write_text(json.dumps(gathered.document(), default=str))
        elif path == SAMPLES:
            write_samples(gathered.columns, copy)
        elif path.startswith(f"{ARTIFACTS}/"):
            copy = folder / path
        return copy if copy.exists() else None

    last = {metric.key: metric.value for metric in logged_metrics(gathered)}
    tags = {**logged_tags(gathered), UUID: start.uuid}
    found = RunEntry("", "", start.at.wall_ns // 1_000_000, tags, last, logged_params(start))
    said = run_fields(found)
    experiment = said.pop("experiment") or "default"
    return StoredRun(**said, experiment=experiment, id="", fetch=fetch, attaching=True)


def open_store(store: str | None = None) -> RunStore:
    """Open the store of runs.

    Args:
        store: address or path, see `dippm.runs.store.location`; by default that of
            `$MLFLOW_TRACKING_URI`, else a file of the user's.

    Raises:
        StoreError: if it cannot be reached or opened; `StoreNotInstalledError` without MLflow.
    """
    location = locate_store(store)
    return RunStore(location, connect(location))


def _lock_folder(folder: Path, locks: contextlib.ExitStack, wait: bool) -> bool:
    """Lock a folder against other processes until the locks close; return False if one holds it."""
    try:
        lock = locks.enter_context(open(folder / ".attach.lock", "a"))  # noqa: SIM115
    except OSError:  # a read-only folder
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system: rely on the store's transactions
        return True
    return True
