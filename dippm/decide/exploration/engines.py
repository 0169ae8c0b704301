"""Engines, which run the workers of a search: forked processes, this process, or a Ray cluster.

A forked process shares everything that the caller has loaded, including the predictor. It converts
modules itself, which saves writing and reading the exported program. If a conversion kills it, the
caller sees its pipe close.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import dippm
from dippm.base import process
from dippm.base.process.cluster import join
from dippm.decide.exploration.errors import ExploreError, ExploreNotInstalledError
from dippm.decide.exploration.evaluation import Evaluator, SearchQuestion, Task
from dippm.decide.exploration.worker_pool import DesignOutcomes, LostWorker


class ForkedWorker:
    """A worker in a forked process.

    Args:
        question: question of the search.
        others: pipe ends of other workers, which the process inherits and has to close.
    """

    def __init__(self, question: SearchQuestion, others: Sequence[Connection]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        held = (self.pipe, *others)
        self._process = context.Process(
            target=_serve, args=(question, theirs, held, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return self._process.pid

    def end(self) -> int:
        """End the process and return its exit code."""
        self.pipe.close()
        self._process.join(0.2)
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        return code or 0


class LocalEngine:
    """Engine of forked workers.

    Args:
        question: question of the search.
        workers: number of workers.
    """

    def __init__(self, question: SearchQuestion, workers: int) -> None:
        self.workers, self._question = workers, question
        self._open: list[ForkedWorker] = []

    def open(self) -> ForkedWorker:
        """Fork a worker."""
        worker = ForkedWorker(self._question, [other.pipe for other in self._open])
        self._open.append(worker)
        return worker

    def begin(self, worker: ForkedWorker, task: Task) -> None:
        """Send a task; `wait` notices a worker that has ended."""
        with contextlib.suppress(OSError):
            worker.pipe.send(task)

    def wait(
        self, busy: Sequence[ForkedWorker]
    ) -> list[tuple[ForkedWorker, DesignOutcomes | LostWorker]]:
        """Wait until at least one worker has finished or is lost; return the result of each."""
        by_pipe = {worker.pipe: worker for worker in busy}
        found: list[tuple[ForkedWorker, DesignOutcomes | LostWorker]] = []
        for pipe in wait(list(by_pipe)):
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                found.append((worker, pipe.recv()))
            except (EOFError, OSError):
                found.append((worker, self._lost(worker)))
        return found

    def close(self, worker: ForkedWorker) -> None:
        """End a worker."""
        if worker in self._open:
            self._open.remove(worker)
            worker.end()

    def _lost(self, worker: ForkedWorker) -> LostWorker:
        self._open.remove(worker)
        code = worker.end()
        if code == -signal.SIGALRM:
            seconds = self._question.timeout_s
            return LostWorker(f"the conversion took longer than {seconds:g} s", is_final=True)
        return LostWorker(f"the process that converted it ended: {process.describe_exit(code)}")


class HereEngine:
    """Engine of one worker in this process, for functions that a fork breaks (those on a GPU)."""

    workers = 1

    def __init__(self, question: SearchQuestion) -> None:
        self._evaluator = Evaluator(question)
        self._task: Task | None = None

    def open(self) -> Any:
        """Return this process."""
        return self

    def begin(self, worker: Any, task: Task) -> None:
        """Remember the task."""
        self._task = task

    def wait(self, busy: Sequence[Any]) -> list[tuple[Any, DesignOutcomes | LostWorker]]:
        """Evaluate the task."""
        assert self._task is not None
        return [(self, self._evaluator.evaluate(self._task))]

    def close(self, worker: Any) -> None:
        """Do nothing."""


def can_fork() -> bool:
    """Return whether this system can fork workers."""
    return "fork" in multiprocessing.get_all_start_methods()


def _serve(
    question: SearchQuestion, pipe: Connection, held: Sequence[Connection], parent: int
) -> None:
    """Answer tasks until the pipe closes."""
    for other in held:
        other.close()
    process.follow_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    process.limit_memory(question.memory_limit_mb + _data_mb())
    one_thread()
    gc.freeze()  # keeps the collector away from the caller's objects, whose pages are shared
    evaluator = Evaluator(question, own_process=True)
    with contextlib.suppress(EOFError, OSError, BrokenPipeError):
        _answer_all(pipe, evaluator.evaluate)


def _answer_all(pipe: Connection, evaluate: Callable[[Task], DesignOutcomes]) -> None:
    while True:
        pipe.send(evaluate(pipe.recv()))


def one_thread() -> None:
    """Keep torch from using threads, which a forked process does not inherit."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    torch.set_num_threads(1)


def _data_mb() -> int:
    """Return the private memory of this process at its start in MiB; 0 where it is not known."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        with open("/proc/self/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmData"))
        return int(line.split()[1]) >> 10
    return 0


# Workers on a Ray cluster: actors, one for each processor.
#
# Ray pickles the user's functions, by value if they are defined in a script or notebook. Modules
# that they import must be installed on every node, or be found there by the driver's `PYTHONPATH`
# and folder, as on a shared file system.


class EvaluationActor:
    """Ray actor: an evaluator in a process of its own.

    Args:
        question: question of the search.
    """

    def __init__(self, question: SearchQuestion) -> None:
        one_thread()
        self._evaluator = Evaluator(question, own_process=True)

    def evaluate(self, task: Task) -> DesignOutcomes:
        """Return the outcomes of a task."""
        return self._evaluator.evaluate(task)

    def pid(self) -> int:
        """Return the id of the actor's process."""
        return os.getpid()


class RayEngine:
    """Engine of actors on a Ray cluster.

    Args:
        question: question of the search.
        address: address of the cluster: "auto" for the one on this machine, "local" for a new one.
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
        """Wait until at least one worker has finished or is lost; return the result of each."""
        by_answer = {self._running[worker]: worker for worker in busy}
        ready, _ = self._ray.wait(list(by_answer), num_returns=1)
        found: list[tuple[Any, DesignOutcomes | LostWorker]] = []
        for answer in ready:
            worker = by_answer[answer]
            del self._running[worker]
            try:
                found.append((worker, self._ray.get(answer)))
            except self._ray.exceptions.RayError as error:
                found.append((worker, LostWorker(f"the worker was lost: {_last_line(error)}")))
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


def _last_line(error: Exception) -> str:
    """Return the last line of an error: Ray puts the exception after its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
