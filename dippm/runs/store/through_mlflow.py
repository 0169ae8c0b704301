"""`ThroughMlflow`: runs accessed by MLflow's client, where we do not read its tables.

That is for servers, unknown schemas, and artifacts that are not in files. The methods are those of
`dippm.runs.store.client.Runs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base.progress import tell
from dippm.runs.store.query import Clause, RunEntry, experiment_folder

if TYPE_CHECKING:
    from dippm.runs.store.location import StoreLocation
    from dippm.runs.store.run_contents import LoggedMetric

BATCH, FEW = 1000, 100
"""MLflow's limits per request for metrics, and for params or tags."""


class ThroughMlflow:
    """Runs of a store.

    Args:
        location: location of any kind.
        client: `mlflow.tracking.MlflowClient`, by default a new one.
    """

    def __init__(self, location: StoreLocation, client: Any = None) -> None:
        if client is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=location.uri)
        self._location, self._client = location, client

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: MLflow's client has no transactions, each request is its own."""
        return contextlib.nullcontext()

    def find(self, clauses: Iterable[Clause], experiment: str | None = None) -> Iterator[RunEntry]:
        """Yield runs, newest first; see `Runs.find`."""
        names = self._experiments()
        ids = [id_ for id_, name in names.items() if experiment in (None, name)]
        condition = " AND ".join(clause.text() for clause in clauses)
        token: str | None = ""
        while ids and token is not None:
            page = self._client.search_runs(
                ids,
                condition,
                max_results=500,
                order_by=["attributes.start_time DESC"],
                page_token=token or None,
            )
            for run in page:
                info, data = run.info, run.data
                name = names.get(info.experiment_id, "")
                yield RunEntry(
                    info.run_id, name, info.start_time, data.tags, data.metrics, data.params
                )
            token = page.token or None

    def create(self, experiment: str, start_ms: int, tags: Mapping[str, str], name: str) -> str:
        """Create a run, and its experiment if missing; return its id."""
        run = self._client.create_run(
            self._experiment(experiment), start_time=start_ms, tags=dict(tags), run_name=name
        )
        return str(run.info.run_id)

    def log(
        self,
        id_: str,
        metrics: Iterable[LoggedMetric],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Write metrics, params and tags of a run; equal ones are not duplicated."""
        from mlflow import entities

        for given in _batches([entities.Param(*item) for item in params.items()], FEW):
            self._client.log_batch(id_, params=given)
        points = [entities.Metric(m.key, m.value, m.timestamp, m.step) for m in metrics]
        for done, batch in enumerate(_batches(points, BATCH)):
            tell(f"point {done * BATCH:,} of {len(points):,}")
            self._client.log_batch(id_, metrics=batch)
        for texts in _batches([entities.RunTag(*item) for item in tags.items()], FEW):
            self._client.log_batch(id_, tags=texts)

    def end(self, id_: str, status: str, end_ms: int) -> None:
        """Record how and when a run ended."""
        self._client.set_terminated(id_, status, end_ms)

    def delete(self, id_: str) -> None:
        """Delete a run."""
        self._client.delete_run(id_)

    def put(self, id_: str, folder: Path, under: str = "") -> None:
        """Store the files of a folder as artifacts of a run."""
        self._client.log_artifacts(id_, str(folder), under or None)

    def fetch(self, id_: str, path: str, into: Path) -> Path | None:
        """Copy an artifact into a folder; return None if it does not exist."""
        folder = path.rpartition("/")[0]
        if all(item.path != path for item in self._client.list_artifacts(id_, folder or None)):
            return None
        return Path(self._client.download_artifacts(id_, path, str(into)))

    def _experiments(self) -> dict[str, str]:
        """Return the names of experiments by id."""
        token: str | None = ""
        names: dict[str, str] = {}
        while token is not None:
            page = self._client.search_experiments(max_results=500, page_token=token or None)
            names.update({experiment.experiment_id: experiment.name for experiment in page})
            token = page.token or None
        return names

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                where = self._location.artifacts
                location = (
                    {"artifact_location": f"{where}/{experiment_folder(name)}"} if where else {}
                )
                return str(self._client.create_experiment(name, **location))
            except Exception:  # another process may have been faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
