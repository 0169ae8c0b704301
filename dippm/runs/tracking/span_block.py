"""A span in progress, and the current run and span of a thread or task."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextvars import ContextVar
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from typing import Protocol, TypeAlias

from dippm.runs.tracking.metrics import CallMetric, Measurement


class SpanWriter(Protocol):
    """The destination of spans: a run."""

    def new_id(self) -> int:
        """Return an id that is unique within the run; 0 if the run cannot be written."""
        ...

    def write_line(self, line: str) -> None:
        """Append an event; never raises."""
        ...


SpanContext: TypeAlias = tuple[SpanWriter, int]
CURRENT: ContextVar[SpanContext | None] = ContextVar("dippm_here", default=None)
"""The current run and span of a thread or task."""


class SpanBlock:
    """A block that is recorded when it is entered and when it is left; used once.

    Attributes:
        id: id of the span; 0 before the start, or if it is not recorded.
    """

    __slots__ = ("_before", "_head", "_measured", "_metrics", "_name", "_run", "id")

    def __init__(
        self, run: SpanWriter | None, quoted_name: str, metrics: tuple[CallMetric, ...]
    ) -> None:
        """Make a block; without a run it is not recorded and costs almost nothing."""
        self.id = 0
        self._run = run
        self._name = quoted_name
        self._metrics = metrics
        self._measured: Measurement | None = None

    def __enter__(self) -> SpanBlock:
        run = self._run
        if run is not None:
            self._before = before = CURRENT.get()
            self.id = id = run.new_id()
            parent = before[1] if before is not None and before[0] is run else 0
            CURRENT.set((run, id))
            self._head = (
                f'{{"span":{{"id":{id},"name":{self._name},"parent":{parent},'
                f'"thread":{thread_label()},"start_ns":{time.monotonic_ns()}'
            )
            if id:
                run.write_line(f'{self._head},"status":"open"}}}}\n')
            if self._metrics:
                self._measured = Measurement(self._metrics)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._run is None:
            return
        end_ns = time.monotonic_ns()
        tail = ""
        if self._measured is not None:
            values, absent = self._measured.stop()
            tail = f',"values":{dumps(values)}' if values else ""
            if absent:
                tail += f',"absent":{dumps(absent)}'
        if kind is not None:
            tail += f',"status":"failed","error":{quoted(kind.__name__)}'
        self.leave()
        if self.id:
            self._run.write_line(f'{self._head},"end_ns":{end_ns}{tail}}}}}\n')

    def leave(self) -> None:
        """Restore the enclosing span, as a generator does while its caller works."""
        if self._run is not None:
            CURRENT.set(self._before)  # not by a token: a generator may end in another context

    def come_back(self) -> None:
        """Make this span current again."""
        if self._run is not None:
            self._before = CURRENT.get()
            CURRENT.set((self._run, self.id))


# Labels of process, thread and task.


_PROCESS = os.getpid()


def process_number() -> int:
    """Return the pid of this process, cached: no system call."""
    return _PROCESS


def thread_label() -> str:
    """Return "PROCESS/THREAD", or "PROCESS/THREAD/TASK" inside an asyncio task, as JSON."""
    label = f"{_PROCESS}/{threading.get_native_id()}"
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        loop = asyncio._get_running_loop()
        if loop is not None:
            task = asyncio.current_task(loop)
            if task is not None:
                return quoted(f"{label}/{task.get_name()}")
    return f'"{label}"'


def _forked() -> None:
    global _PROCESS
    _PROCESS = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
