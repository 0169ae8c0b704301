"""`AnswerPool`: threads that take jobs from a queue, each with a worker process."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dippm.base.process import BadFrameError, TimedOutError, WorkerDiedError, WorkerPipes
from dippm.errors import DippmError, UnexpectedError
from dippm.show.service.errors import (
    ClosingError,
    JobCancelledError,
    NoRoomError,
    TimeLimitError,
    WorkerLostError,
    status_of,
)
from dippm.show.service.jobs import FairQueue, Job
from dippm.show.service.metrics import Metrics, log

ANSWERS_PER_PROCESS = 200
ATTEMPTS = 2
START_S = 120.0
OWN_MEMORY_MB = 1024
"""Memory limit of a worker process itself; each conversion runs in a further process."""


class ReportedError(DippmError):
    """An error of a worker process, with its type, message and hint.

    Attributes:
        kind: name of its type.
        status: HTTP status code.
    """

    def __init__(self, message: str, hint: str, kind: str) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.status = status_of(type(self.kind, (DippmError,), {})(""))

    def to_dict(self) -> dict[str, str]:
        """Return the error as the worker process reported it."""
        return {**super().to_dict(), "type": self.kind}


class Answerer:
    """Client side of a worker process.

    Attributes:
        answers: number of answers so far.
    """

    def __init__(self, folder: Path, memory_limit_mb: int) -> None:
        """Start the process.

        Args:
            folder: folder for its files, created here and removed with the process.
            memory_limit_mb: memory limit of a conversion in MiB.
        """
        self.answers = 0
        self._folder = folder
        folder.mkdir(mode=0o700)
        words = f"{str(folder)!r}, {memory_limit_mb + OWN_MEMORY_MB}"
        start = f"from dippm.show.service.answering import main; main({words})"
        path = os.pathsep.join(os.path.abspath(p or os.getcwd()) for p in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
        try:
            self._pipes = WorkerPipes([sys.executable, "-P", "-c", start], environment)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._pipes.alive

    def wait_until_ready(self, remaining: Callable[[], float]) -> None:
        """Wait until the process has loaded its libraries."""
        self._pipes.receive(remaining)

    def ask(
        self, message: dict[str, Any], remaining: Callable[[], float], tell: Callable[[str], None]
    ) -> dict[str, Any]:
        """Send a question and wait for its answer.

        Raises:
            TimedOutError, WorkerDiedError: see `WorkerPipes.receive`.
        """
        self._pipes.send(message)
        while True:
            frame = self._pipes.receive(remaining)
            if isinstance(stage := frame.get("stage"), str):
                tell(stage)
            elif isinstance(frame.get("text"), str) or isinstance(frame.get("error"), dict):
                self.answers += 1
                return frame
            else:
                raise BadFrameError("answered with an invalid answer")

    def last_words(self) -> str:
        """Return the end of the process's output."""
        return self._pipes.last_words()

    def stop(self) -> None:
        """End the process and its children."""
        self._pipes.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class AnswerPool:
    """Threads with a worker process each.

    Attributes:
        running: running jobs.
    """

    def __init__(
        self,
        queue: FairQueue,
        folder: Path,
        *,
        workers: int,
        memory_limit_mb: int,
        metrics: Metrics,
        keep: Callable[[str, str], None],
        ended: Callable[[Job], None],
    ) -> None:
        """Start the threads and their processes.

        Args:
            queue: queue of jobs.
            folder: folder for the files of the processes.
            workers: number of worker processes.
            memory_limit_mb: memory limit of a conversion in MiB.
            metrics: metrics to update.
            keep: called with the key and the answer of a job before its end is announced.
            ended: called with each job that has ended.
        """
        self._queue, self._folder, self._memory_limit_mb = queue, folder, memory_limit_mb
        self._metrics, self._keep, self._ended = metrics, keep, ended
        self._closing = threading.Event()
        self.running: dict[int, Job] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(n,), name=f"dippm-answers-{n}", daemon=True)
            for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all threads and processes, busy or not."""
        self._closing.set()
        for job in self._queue.close():
            self._end(job, None, ClosingError("the service ends", "Try again when it is back."))
        for thread in self._threads:
            thread.join(15)

    def _serve(self, number: int) -> None:
        answerer: Answerer | None = None
        try:
            answerer = self._started(number)
            while (job := self._queue.take()) is not None:
                self.running[number] = job
                try:
                    answerer = self._work(job, answerer, number)
                except Exception as error:
                    log("failed", "error", job=job.id, reason=f"{type(error).__name__}: {error}")
                    _stop(answerer)
                    answerer = None
                    failed = UnexpectedError(
                        f"unexpected {type(error).__name__}: {error}",
                        "This is a bug in DIPPM: report it with the model.",
                    )
                    self._end(job, None, failed)
                finally:
                    self.running.pop(number, None)
                if answerer is None:  # so that the next job does not wait for a start
                    answerer = self._started(number)
        finally:
            _stop(answerer)

    def _work(self, job: Job, answerer: Answerer | None, number: int) -> Answerer | None:
        """Answer a job, and return the process for the next job."""
        end = time.monotonic() + float(job.message["limit_s"])

        def remaining() -> float:  # cancelling and closing end a wait like the time limit
            if job.is_cancelled or self._closing.is_set():
                raise TimedOutError
            return end - time.monotonic()

        job.start()
        began = time.monotonic()
        try:
            if answerer is None or not answerer.alive:
                _stop(answerer)
                answerer = None
                job.tell("starting a worker")
                answerer = self._started(number)
            if answerer is None:
                raise NoRoomError("no process can be started", "Ask again.", retry_after_s=10)
            frame = answerer.ask(job.message, remaining, job.tell)
        except TimedOutError:
            _stop(answerer)
            answerer = None
            self._end(job, None, self._why_stopped(job))
        except WorkerDiedError as error:
            words = answerer.last_words() if answerer else ""
            _stop(answerer)
            answerer = None
            self._lost(job, error, words)
        except DippmError as error:
            self._end(job, None, error)
        else:
            self._metrics.time("dippm_job_seconds", time.monotonic() - began, question=job.kind)
            fault = frame.get("error")
            failed = (
                ReportedError(fault["message"], fault["hint"], fault["type"]) if fault else None
            )
            self._end(job, frame.get("text"), failed)
            assert answerer is not None
            if answerer.answers >= ANSWERS_PER_PROCESS:
                _stop(answerer)
                answerer = None
        return answerer

    def _why_stopped(self, job: Job) -> DippmError:
        if self._closing.is_set():
            return ClosingError("the service ends", "Try again when it is back.")
        if job.is_cancelled:
            return JobCancelledError("the job was cancelled")
        return TimeLimitError(
            f"the answer took longer than {job.message['limit_s']:g} s",
            "Ask the operator of the service for more time, or predict on your own machine.",
        )

    def _lost(self, job: Job, error: WorkerDiedError, words: str) -> None:
        """Requeue a job that lost its process, once."""
        self._metrics.count("dippm_workers_lost_total")
        log("worker lost", "warning", job=job.id, reason=str(error), words=words[-500:] or None)
        if job.attempts < ATTEMPTS:
            job.tell("the worker was lost; starting again")
            self._queue.put_first(job)
            return
        lost = WorkerLostError(
            f"the process that answers {error}, twice",
            "The model may need more memory than the machine has: try a smaller one, or later.",
        )
        self._end(job, None, lost)

    def _end(self, job: Job, text: str | None, error: DippmError | None) -> None:
        if text is not None:
            self._keep(job.key, text)
        if job.finish(text, error):
            self._metrics.count("dippm_jobs_total", question=job.kind, state=job.state)
            self._ended(job)

    def _started(self, number: int) -> Answerer | None:
        """Return a ready process; None, with a log entry, if it cannot be started."""
        folder = self._folder / f"worker-{number}-{secrets.token_hex(4)}"
        end = time.monotonic() + START_S

        def remaining() -> float:
            return 0.0 if self._closing.is_set() else end - time.monotonic()

        answerer = None
        try:
            answerer = Answerer(folder, self._memory_limit_mb)
            answerer.wait_until_ready(remaining)
        except (OSError, TimedOutError, WorkerDiedError) as error:
            words = answerer.last_words()[-500:] if answerer else ""
            if not self._closing.is_set():
                reason = f"{type(error).__name__}: {error}"
                log("no worker", "error", reason=reason, words=words or None)
            _stop(answerer)
            return None
        self._metrics.count("dippm_workers_started_total")
        return answerer


def _stop(answerer: Answerer | None) -> None:
    """End a process."""
    if answerer is not None:
        answerer.stop()
