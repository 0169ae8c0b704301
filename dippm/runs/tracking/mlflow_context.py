"""Tags for MLflow's own runs of a workload, which link them to the tracked run.

MLflow loads this through the entry point group "mlflow.run_context_provider" whenever it starts a
run where DIPPM is installed; MLflow is not imported here.
"""

from __future__ import annotations

from dippm.runs.store.record import RUN_TAG
from dippm.runs.tracking.run import Run, current


class TrackedRunContext:
    """A provider of tags, in MLflow's interface."""

    def in_context(self) -> bool:
        """Return whether this process belongs to a tracked run."""
        return _run() is not None

    def tags(self) -> dict[str, str]:
        """Return the uuid of the tracked run."""
        run = _run()
        return {} if run is None else {RUN_TAG: run.uuid}


def _run() -> Run | None:
    run = current()
    return run if run is not None and run.recorded else None
