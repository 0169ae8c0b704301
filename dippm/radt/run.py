"""`RADTBenchmark`: logging with radT's names; it does nothing outside of a run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from dippm.runs.tracking.run import Run, current


class RADTBenchmark:
    """The run that this process is part of: of `dippm run`, a plan, or a `dippm.track` block.

    >>> with RADTBenchmark() as run:
    ...     run.log_metric("loss", 0.25, 1)

    Logged data goes into that run. Functions of MLflow that are not defined here are MLflow's own:
    their run is separate and tagged with ours. Outside of a run all of them do nothing.
    """

    def __init__(self) -> None:
        self._run: Run | None = None

    def __enter__(self) -> RADTBenchmark:
        self._run = current()
        return self

    def __exit__(self, *_: object) -> None:
        self._run = None

    def log_metric(
        self, key: str, value: float, step: int | None = None, *, epoch: int | None = None
    ) -> None:
        """Record a number.

        Args:
            key: name of the number.
            value: a number, or anything that `float` accepts.
            step: training step.
            epoch: another name for `step`.

        Raises:
            RunError: if the value is not a number.
        """
        if (run := self._here()) is not None:
            run.log(key, value, step=epoch if step is None else step)

    def log_metrics(
        self, metrics: Mapping[str, float], step: int | None = None, *, epoch: int | None = None
    ) -> None:
        """Record numbers by name, see `log_metric`."""
        for key, value in metrics.items():
            self.log_metric(key, value, step, epoch=epoch)

    def log_param(self, key: str, value: Any) -> None:
        """Record a setting."""
        self.log_params({key: value})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings; a later value of the same name wins."""
        if (run := self._here()) is not None:
            run.params(params)

    def set_tag(self, key: str, value: Any) -> None:
        """Record free text by name."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Record several tags."""
        if (run := self._here()) is not None:
            for key, value in tags.items():
                run.tag(key, value)

    def log_artifact(
        self, local_path: str | os.PathLike[str], artifact_path: str | None = None
    ) -> None:
        """Store a copy of a file, as it is now, with the run.

        Args:
            local_path: path of the file.
            artifact_path: destination folder.

        Raises:
            RunError: if there is no such file, or if the destination leaves the run's folder.
        """
        if (run := self._here()) is not None:
            run.artifact(local_path, artifact_path or "")

    def log_artifacts(
        self, local_dir: str | os.PathLike[str], artifact_path: str | None = None
    ) -> None:
        """Store a copy of a folder's contents, see `log_artifact`."""
        if (run := self._here()) is not None:
            for name in sorted(os.listdir(local_dir)):
                run.artifact(os.path.join(local_dir, name), artifact_path or "")

    def _here(self) -> Run | None:
        return self._run or current()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return MLflow's function of a name; outside of a run one that does nothing."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self._here() is None:
            return _nothing
        try:
            mlflow = importlib.import_module("mlflow")
        except ImportError as error:
            raise AttributeError(f"{name} is MLflow's: pip install mlflow-skinny") from error
        found: Callable[..., Any] = getattr(mlflow, name)
        return found


def _nothing(*_: Any, **__: Any) -> None:
    """Replace a function of MLflow outside of a run."""
