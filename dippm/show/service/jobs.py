"""`Job`, and `FairQueue`: a bounded queue in which clients take turns."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dippm.errors import DippmError
from dippm.show.service.errors import BusyError, ClosingError, JobCancelledError
from dippm.show.service.uploads import UploadedModel

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
MOST_STAGES, FIRST_STAGES = 200, 50
"""Number of stages of a job that are kept, and how many of them are the first ones."""


@dataclass(eq=False, slots=True)
class Job:
    """One question and its answer; thread-safe.

    Attributes:
        kind: kind of question.
        key: key of its result.
        client: client that asked first.
        message: message for the worker process.
        models: uploads that it uses; they are released when it ends.
        id: unguessable identifier.
        state: state of the job.
        stages: (seconds since the question, stage) of its progress, thinned if there are many.
        text: the answer; None until it is done.
        error: error of a failed job; None otherwise.
        waiters: number of requests that wait for it.
        is_detached: whether a client has its address and may come back.
        attempts: number of worker processes that worked on it.
    """

    kind: str
    key: str
    client: str
    message: dict[str, Any] = field(repr=False)
    models: tuple[UploadedModel, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: State = "queued"
    stages: list[tuple[float, str]] = field(default_factory=list)
    text: str | None = field(default=None, repr=False)
    error: DippmError | None = None
    waiters: int = 0
    is_detached: bool = False
    attempts: int = 0
    created: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    ended_s: float | None = None
    version: int = 0
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _listeners: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return self._cancelled.is_set()

    @property
    def age_s(self) -> float:
        """Seconds since the question."""
        return time.monotonic() - self._began

    def tell(self, stage: str) -> None:
        """Record a stage of progress."""
        with self._lock:
            self.stages.append((round(self.age_s, 3), stage))
            if len(self.stages) > MOST_STAGES:
                del self.stages[FIRST_STAGES]
        self._change()

    def start(self) -> None:
        """Mark the job as running."""
        with self._lock:
            self.state, self.attempts = "running", self.attempts + 1
            self.started_s = self.started_s or self.age_s
        self._change()

    def finish(self, text: str | None, error: DippmError | None = None) -> bool:
        """End the job once, with its answer or its error.

        Returns:
            Whether this call ended it.
        """
        with self._lock:
            if self.ended:
                return False
            self.text, self.error = text, error
            self.ended_s = self.age_s
            if text is not None:
                self.state = "done"
            else:
                self.state = "cancelled" if isinstance(error, JobCancelledError) else "failed"
        self._change()
        return True

    def cancel(self) -> None:
        """Request cancellation; the worker notices it within a fraction of a second."""
        self._cancelled.set()

    def listen(self, loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Event, Callable[[], None]]:
        """Return an event that each change sets, and a function that unsubscribes it."""
        event = asyncio.Event()

        def hear() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed: the service is shutting down
                return

        with self._lock:
            self._listeners.append(hear)

        def end() -> None:
            with self._lock:
                self._listeners.remove(hear)

        return event, end

    def to_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return everything except the answer as JSON-ready data.

        Args:
            position: position in the queue, from 1.
        """
        with self._lock:
            return {
                "schema": "dippm.job/1",
                "id": self.id,
                "question": self.kind,
                "state": self.state,
                "stage": self.stages[-1][1] if self.stages else None,
                "stages": [{"at_s": at, "stage": words} for at, words in self.stages],
                "position": position,
                "version": self.version,
                "age_s": round(self.age_s, 3),
                "started_s": self.started_s,
                "ended_s": self.ended_s,
                "error": self.error.to_dict() if self.error else None,
            }

    def _change(self) -> None:
        with self._lock:
            self.version += 1
            listeners = list(self._listeners)
        for hear in listeners:
            hear()


class FairQueue:
    """Waiting jobs: clients take turns, and each has a limit of waiting jobs."""

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most, self._most_of_client = most, most_of_client
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        with self._changed:
            return self._length()

    def check(self, client: str, retry_after_s: float) -> None:
        """Refuse a client whose next job would not fit the queue, before its file is read.

        Raises:
            BusyError: if it would not fit.
        """
        with self._changed:
            self._check(client, retry_after_s)

    def put(self, job: Job, retry_after_s: float) -> None:
        """Append a job to its client's turn.

        Raises:
            BusyError: if the queue is full, or the client has too many jobs in it.
            ClosingError: if the service is shutting down.
        """
        with self._changed:
            if self._is_closed:
                raise ClosingError("the service ends", "Try again when it is back.")
            self._check(job.client, retry_after_s)
            self._waiting.setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def put_first(self, job: Job) -> None:
        """Put a job that lost its worker process at the front."""
        with self._changed:
            self._waiting.setdefault(job.client, deque()).appendleft(job)
            self._waiting.move_to_end(job.client, last=False)
            self._changed.notify()

    def take(self) -> Job | None:
        """Wait for a job and remove it: that of the client whose last turn is longest ago.

        Returns:
            None once the queue is closed.
        """
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            client, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs  # its next job comes after those of all others
            return job

    def drop(self, job: Job) -> bool:
        """Remove a job; return whether it was waiting."""
        with self._changed:
            jobs = self._waiting.get(job.client, deque())
            if job not in jobs:
                return False
            jobs.remove(job)
            if not jobs:
                del self._waiting[job.client]
            return True

    def position(self, job: Job) -> int | None:
        """Return the position of a job in turns, from 1; None if it is not waiting."""
        with self._changed:
            jobs = self._waiting.get(job.client)
            if jobs is None or job not in jobs:
                return None
            turn, order = jobs.index(job), list(self._waiting)
            # Each other client has one job before it per earlier turn, and one more if it is ahead.
            ahead = order.index(job.client)
            before = (
                min(len(others), turn + (place < ahead))
                for place, others in enumerate(self._waiting.values())
                if others is not jobs
            )
            return turn + sum(before) + 1

    def close(self) -> list[Job]:
        """Close the queue, and return the jobs that were still waiting."""
        with self._changed:
            self._is_closed = True
            left = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
            self._changed.notify_all()
            return left

    def _length(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _check(self, client: str, retry_after_s: float) -> None:
        of_client = len(self._waiting.get(client, ()))
        if self._length() >= self._most or of_client >= self._most_of_client:
            whose = "of this client " if of_client >= self._most_of_client else ""
            raise BusyError(
                f"{max(of_client, self._length() if not whose else 0)} questions {whose}wait",
                f"Try again in {retry_after_s:.0f} s.",
                retry_after_s=retry_after_s,
            )
