"""`RunStore`: runs in MLflow.

A run is attached in steps that may be repeated: MLflow's run is found by its tag `dippm.uuid` or
made with it, metrics and params of the same key and value are the same, artifacts are overwritten,
and the tag `dippm.complete` comes last. So an attach that was killed goes on where it was, a run is
there once, and a list shows whole runs only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.errors import RunError, UnknownNameError
from dippm.progress import stage, tell
from dippm.store.client import connect, failures_of
from dippm.store.folder import ARTIFACTS, read_folder
from dippm.store.gathered import Gathered, gather
from dippm.store.logged import logged_metrics, logged_params, logged_tags
from dippm.store.names import text
from dippm.store.parquet import write_samples
from dippm.store.place import Place, place_of
from dippm.store.query import COMPLETE, UUID, Condition, check_length, described, holds
from dippm.store.record import BESIDE
from dippm.store.stored import DOCUMENTS, RECORD, SAMPLES, StoredRun

BATCH = 1000
COMPLETED = f"tags.`{COMPLETE}` = '1'"
KNOWN_OF = 100
"""Runs whose metrics are named where a condition knows none."""
PARENT = "mlflow.parentRunId"
TERMINAL = {"finished": "FINISHED", "interrupted": "KILLED"}


class RunStore:
    """Runs that were attached.

    Attributes:
        place: where they are.
    """

    def __init__(self, place: Place, client: Any) -> None:
        self.place = place
        self._client = client
        self._experiments: dict[str, str] = {}
        self._fetched = tempfile.TemporaryDirectory(prefix="dippm-runs-")

    def attach(self, folder: Path) -> StoredRun:
        """Take a run into the store, exactly once, however often this is called or killed.

        Raises:
            RunError: if the folder holds no run.
            StoreError: if the store cannot be reached or written; the folder stays as it is.
        """
        with _alone(folder), failures_of(self.place, "cannot write the run to"):
            uuid = read_folder(folder).start.uuid
            found = self._of_uuid(uuid)
            if found is None or COMPLETE not in found.data.tags:
                with stage("attaching the run"):
                    self._write(gather(folder), found)
                found = self._of_uuid(uuid)
            return self._stored(found)

    def runs(
        self,
        search: str = "",
        *,
        experiment: str | None = None,
        status: str | None = None,
        where: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredRun]:
        """Return runs, newest first.

        Args:
            search: words that name, description, experiment, params, tags or uuid hold, in any
                case; all of them.
            experiment: the exact name of one.
            status: the exact word of one.
            where: conditions such as "tree.rss_mb.max > 100" or "loss <= 0.1".
            limit: how many at most.

        Raises:
            RunError: if a condition is none, or a text too long.
            UnknownNameError: if no run of the store has the metric of a condition.
            StoreError: if the store cannot be read.
        """
        check_length(search)
        parsed = [Condition.parse(condition) for condition in where]
        conditions = [COMPLETED, *(condition.filter() for condition in parsed)]
        with failures_of(self.place, "cannot read"):
            found = (
                run
                for run in map(self._stored, self._search(" AND ".join(conditions), experiment))
                if holds(run.words, search) and status in (None, run.status)
            )
            runs = [run for run, _ in zip(found, range(limit), strict=False)]
            if not runs:
                for condition in parsed:
                    self._check_known(condition)
            return runs

    def _check_known(self, condition: Condition) -> None:
        """Raise if there are runs, and none has the metric of a condition."""
        both = (replace(condition, relation=relation, number=0.0) for relation in ("<", ">="))
        for either in both:
            if next(self._search(f"{COMPLETED} AND {either.filter()}"), None) is not None:
                return
        known = {
            name
            for run, _ in zip(self._search(COMPLETED), range(KNOWN_OF), strict=False)
            for name in described(run)["metrics"]
        }
        if known:
            raise UnknownNameError.of("metric of runs", condition.metric, known)

    def run(self, uuid: str) -> StoredRun:
        """Return one run by its uuid, or by as much of its beginning as only it has.

        Raises:
            RunError: if there is none, or if there are several.
            StoreError: if the store cannot be read.
        """
        hint = "`dippm runs` lists them."
        prefix = uuid.strip().casefold()
        if not prefix or set(prefix) - set("0123456789abcdef"):
            raise RunError(f"{uuid!r} is no uuid of a run", hint)
        condition = f"tags.`{UUID}` LIKE '{prefix}%' AND {COMPLETED}"
        with failures_of(self.place, "cannot read"):
            found = [run for run, _ in zip(self._search(condition), range(3), strict=False)]
            if not found:
                raise RunError(f"there is no run {prefix} in {self.place.shown()}", hint)
            if len(found) > 1:
                raise RunError(f"several runs begin with {prefix}", "Give more of its uuid.")
            return self._stored(found[0])

    def keep(
        self, run: StoredRun, name: str, document: Any, figures: dict[str, float] | None = None
    ) -> None:
        """Keep a document beside a run, and key figures of it as metrics.

        Args:
            run: of this store.
            name: of the document, an identifier: "comparison" is `StoredRun.comparison`.
            document: JSON.
            figures: by name; of one name the last counts.

        Raises:
            StoreError: if the store cannot be written.
        """
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no identifier")
        with (
            failures_of(self.place, "cannot write to"),
            tempfile.TemporaryDirectory(prefix="dippm-keep-") as scratch,
        ):
            file = Path(scratch) / f"{name}.json"
            file.write_text(json.dumps(document, default=str))
            self._client.log_artifact(run.id, str(file), DOCUMENTS)
            for key, value in (figures or {}).items():
                self._client.log_metric(run.id, f"{name}/{key}", value)

    def forget(self, run: StoredRun) -> None:
        """Remove the local copies of a run's artifacts, for a program that reads many."""
        shutil.rmtree(Path(self._fetched.name) / run.id, ignore_errors=True)

    def _write(self, gathered: Gathered, found: Any | None) -> None:
        start = gathered.recorded.start
        if found is None:
            found = self._client.create_run(
                self._experiment(start.experiment or "default"),
                start_time=start.at.wall_ns // 1_000_000,
                tags={UUID: start.uuid},
                run_name=text(start.name, 250) or start.uuid[:8],
            )
        id_ = found.info.run_id
        with tempfile.TemporaryDirectory(prefix="dippm-attach-") as scratch:
            tell("writing samples")
            write_samples(gathered.columns, Path(scratch) / SAMPLES)
            record = json.dumps(gathered.document(), separators=(",", ":"), default=str)
            (Path(scratch) / RECORD).write_text(record)
            self._client.log_artifacts(id_, scratch)
        if gathered.artifacts():
            tell("writing artifacts")
            told = gathered.recorded.path / ARTIFACTS
            self._client.log_artifacts(id_, str(told), ARTIFACTS)
        for params in _batches(logged_params(start), 100):
            self._client.log_batch(id_, params=params)
        metrics = logged_metrics(gathered)
        for done, batch in enumerate(_batches(metrics, BATCH)):
            tell(f"point {done * BATCH:,} of {len(metrics):,}")
            self._client.log_batch(id_, metrics=batch)
        for tags in _batches(logged_tags(gathered), 100):
            self._client.log_batch(id_, tags=tags)
        ended_ms = gathered.end.at.wall_ns // 1_000_000
        status = TERMINAL.get(gathered.end.status, "FAILED")
        self._client.set_terminated(id_, status, ended_ms)
        for beside in self._beside(start.uuid):
            if PARENT not in beside.data.tags:  # MLflow's page shows it below ours
                self._client.set_tag(beside.info.run_id, PARENT, id_)
        self._client.set_tag(id_, COMPLETE, "1")

    def beside(self, run: StoredRun) -> tuple[str, ...]:
        """Return the ids of the runs that the workload itself kept in MLflow, in this store.

        Raises:
            StoreError: if the store cannot be read.
        """
        with failures_of(self.place, "cannot read"):
            return tuple(beside.info.run_id for beside in self._beside(run.uuid))

    def _beside(self, uuid: str) -> Iterator[Any]:
        return self._search(f"tags.`{BESIDE}` = '{text(uuid, 64)}'")

    def _of_uuid(self, uuid: str) -> Any | None:
        """Return MLflow's run of a uuid; a request that was repeated on its way made further."""
        found = list(self._search(f"tags.`{UUID}` = '{text(uuid, 64)}'"))
        found.sort(key=lambda run: (COMPLETE not in run.data.tags, run.info.run_id))
        for further in found[1:]:
            self._client.delete_run(further.info.run_id)
        return found[0] if found else None

    def _search(self, condition: str, experiment: str | None = None) -> Iterator[Any]:
        ids = self._experiment_ids(experiment)
        token: str | None = ""
        while ids and token is not None:
            page = self._client.search_runs(
                ids,
                condition,
                max_results=500,
                order_by=["attributes.start_time DESC"],
                page_token=token or None,
            )
            yield from page
            token = page.token or None

    def _experiment_ids(self, name: str | None) -> list[str]:
        token: str | None = ""
        names: dict[str, str] = {}
        while token is not None:
            page = self._client.search_experiments(max_results=500, page_token=token or None)
            names.update({experiment.experiment_id: experiment.name for experiment in page})
            token = page.token or None
        self._experiments = names
        wanted = None if name is None else text(name, 250)
        return [id_ for id_, of_it in names.items() if wanted in (None, of_it)]

    def _experiment(self, name: str) -> str:
        name = text(name, 250)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                where = self.place.artifacts
                place = {"artifact_location": f"{where}/{_folder(name)}"} if where else {}
                return str(self._client.create_experiment(name, **place))
            except Exception:  # another process may have been faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _stored(self, run: Any) -> StoredRun:
        id_, said = run.info.run_id, described(run)

        def fetch(path: str) -> Path | None:
            with failures_of(self.place, f"cannot read {path} of run {said['uuid']} from"):
                folder = path.rpartition("/")[0]
                if all(
                    item.path != path for item in self._client.list_artifacts(id_, folder or None)
                ):
                    return None
                into = Path(self._fetched.name) / id_
                into.mkdir(exist_ok=True)
                return Path(self._client.download_artifacts(id_, path, str(into)))

        experiment = said.pop("experiment") or self._experiments.get(run.info.experiment_id, "")
        return StoredRun(**said, experiment=experiment, id=id_, fetch=fetch)


def open_store(store: str | None = None) -> RunStore:
    """Open the store of runs.

    Args:
        store: an address or a path, see `dippm.store.place`; by default that of
            `$MLFLOW_TRACKING_URI`, else a file of the user's.

    Raises:
        StoreError: if it cannot be reached or opened; `StoreNotInstalledError` without MLflow.
    """
    place = place_of(store)
    return RunStore(place, connect(place))


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _folder(name: str) -> str:
    """Return a folder's name for an experiment, different for different names."""
    import hashlib

    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time attach a folder."""
    try:
        lock = open(folder / ".attach.lock", "a")  # noqa: SIM115  closed below
    except OSError:  # a folder that may only be read
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
