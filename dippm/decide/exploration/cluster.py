"""Workers on a Ray cluster: actors, one for each processor.

Ray pickles the user's functions, by value if they are defined in a script or notebook. Modules that
they import must be installed on every node, or be found there by the driver's `PYTHONPATH` and
folder, as on a shared file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dippm
from dippm.base.process.cluster import join
from dippm.decide.exploration.errors import ExploreError, ExploreNotInstalledError
from dippm.decide.exploration.evaluation import Evaluator
from dippm.decide.exploration.local import one_thread
from dippm.decide.exploration.question import SearchQuestion, Task
from dippm.decide.exploration.worker_pool import DesignOutcomes, LostWorker


class EvaluationActor:
    """Ray actor: an evaluator in a process of its own.

    Args:
        question: the question of the search.
    """

    def __init__(self, question: SearchQuestion) -> None:
        one_thread()
        self._evaluator = Evaluator(question, own_process=True)

    def evaluate(self, task: Task) -> DesignOutcomes:
        """Return the outcomes of a task."""
        return self._evaluator.evaluate(task)

    def pid(self) -> int:
        """Return the id of its process."""
        return os.getpid()


class RayEngine:
    """Actors of a cluster.

    Args:
        question: the question of the search.
        address: address of the cluster: "auto" for the one that runs here, "local" for a new one.
        workers: number of actors; None takes one per processor of the cluster.

    Raises:
        ExploreNotInstalledError: if Ray is not installed.
        ExploreError: if the cluster cannot be reached.
    """

    def __init__(self, question: SearchQuestion, address: str, workers: int | None) -> None:
        self._ray, self._is_ours = _connect(address, workers)
        self._question = self._ray.put(question)
        self.workers = workers or int(self._ray.cluster_resources().get("CPU", 1))
        self._running: dict[Any, Any] = {}

    def open(self) -> Any:
        """Start an actor."""
        return self._ray.remote(EvaluationActor).options(num_cpus=1).remote(self._question)

    def begin(self, worker: Any, task: Task) -> None:
        """Send a task."""
        self._running[worker] = worker.evaluate.remote(task)

    def wait(self, busy: Sequence[Any]) -> list[tuple[Any, DesignOutcomes | LostWorker]]:
        """Wait for outcomes and for lost workers."""
        by_answer = {self._running[worker]: worker for worker in busy}
        ready, _ = self._ray.wait(list(by_answer), num_returns=1)
        found: list[tuple[Any, DesignOutcomes | LostWorker]] = []
        for answer in ready:
            worker = by_answer[answer]
            del self._running[worker]
            try:
                found.append((worker, self._ray.get(answer)))
            except self._ray.exceptions.RayError as error:
                found.append((worker, LostWorker(f"the worker was lost: {_words(error)}")))
        return found

    def close(self, worker: Any) -> None:
        """End an actor."""
        with contextlib.suppress(Exception):
            self._ray.kill(worker)

    def leave(self) -> None:
        """Leave the cluster, if it was joined for this search."""
        if self._is_ours:
            self._ray.shutdown()


def _connect(address: str, workers: int | None) -> tuple[Any, bool]:
    """Return Ray, and whether this call connected it."""
    try:
        import ray
    except ImportError as error:
        raise ExploreNotInstalledError(
            "a cluster needs ray, which is not installed",
            'Install it: pip install "dippm[explore,ray]".',
        ) from error
    if ray.is_initialized():
        return ray, False
    package = Path(dippm.__file__).resolve().parents[1]
    try:
        environment = {"OMP_NUM_THREADS": "1"}
        return join(address, package, environment=environment, processors=workers), True
    except ConnectionError as error:
        hint = 'Start one (`ray start --head`), or use cluster="local".'
        raise ExploreError(str(error), hint) from error


def _words(error: Exception) -> str:
    """Return the last line of an error: Ray puts the exception after its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
