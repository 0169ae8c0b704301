"""`Run`: what a program logs while it runs, from any thread, task or child process.

Nothing here raises into the program for a full disk or a missing folder: lost events are counted
and reported when the run ends. Standard library only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any
from weakref import WeakSet

from dippm.errors import RunError
from dippm.runs.store.folder import IDS, RunFolder
from dippm.runs.store.record import End, Value, ValueKind
from dippm.runs.tracking.metrics import CallMetric
from dippm.runs.tracking.span_block import CURRENT, SpanBlock, SpanContext, process_number

__all__ = ["JOIN_VARIABLE", "Run", "SpanBlock", "current", "enter", "leave", "span"]

JOIN_VARIABLE = "DIPPM_RUN"
"""Environment variable with the folder of a run that child processes join."""


class Run:
    """A run in progress.

    Attributes:
        uuid: 32 hexadecimal digits.
        path: folder of the run; None if nothing is recorded.
        trouble: reason why something is not recorded, "" if everything is.
        lost_events: number of spans, values, params and tags that could not be written.
    """

    def __init__(self, uuid: str, folder: RunFolder | None, trouble: str = "") -> None:
        """Write to the folder of a run; None for a run that cannot be recorded."""
        self.uuid = uuid
        self.path: Path | None = folder.path if folder else None
        self.trouble = trouble
        self.lost_events = 0
        self._folder = folder
        self._process = process_number()
        self._lock = threading.RLock()  # a signal handler may write while its thread is writing
        self._next = self._last = 0
        _ALL.add(self)

    def span(self, name: str, *, metrics: Iterable[CallMetric] = ()) -> SpanBlock:
        """Return a context manager that records its block as a span.

        Args:
            name: name of the stage.
            metrics: metrics of the block.
        """
        return SpanBlock(self, quoted(name), tuple(metrics))

    def log(
        self,
        name: str,
        value: float,
        *,
        step: int | None = None,
        unit: str = "",
        description: str = "",
    ) -> None:
        """Record one number.

        Args:
            name: name of the quantity.
            value: a number, or anything that `float` accepts, such as a tensor of one element.
            step: training step.
            unit: unit of the number.
            description: free text.

        Raises:
            RunError: if the value is not a number.
        """
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            hint = "Log one number at a time; rows and matrices have trackers in `dippm.umlaut`."
            raise RunError(f"the value of {name!r} is no number: {error}", hint) from error
        self.tell(name, "metric", number, step=step, unit=unit, description=description)

    def tell(
        self,
        name: str,
        kind: ValueKind,
        data: Any,
        *,
        step: int | None = None,
        unit: str = "",
        description: str = "",
    ) -> None:
        """Record data of any kind; `data` is JSON in the form of its kind."""
        here = CURRENT.get()
        span = here[1] if here is not None and here[0] is self else 0
        value = Value(name, kind, data, time.monotonic_ns(), unit, description, span, step)
        self._write(lambda folder: folder.value(value))

    def params(self, params: Mapping[str, Any]) -> None:
        """Record settings of the workload; a later value of the same name wins."""
        texts = {str(name): str(value) for name, value in params.items()}
        self._write(lambda folder: folder.settings(params=texts))

    def tag(self, name: str, value: Any = "") -> None:
        """Record free text by name."""
        tags = {str(name): str(value)}
        self._write(lambda folder: folder.settings(tags=tags))

    def artifact(self, source: str | os.PathLike[str], under: str = "") -> None:
        """Store a copy of a file or folder, as it is now, with the run.

        Args:
            source: file or folder.
            under: destination folder within the run's artifacts.

        Raises:
            RunError: if there is no such file, or if `under` leaves the run's folder.
        """
        path = Path(source).expanduser()
        if not path.exists():
            raise RunError(f"there is no file {path} to keep", "Give one that was written before.")
        if os.path.isabs(under) or ".." in Path(under).parts:
            raise RunError(f"{under!r} leads out of the run", "Name a folder without '..'.")
        self._write(lambda folder: folder.artifact(path, under))

    @property
    def recorded(self) -> bool:
        """Whether events are recorded in a folder."""
        return self._folder is not None

    def finish(self, end: End) -> None:
        """Record how the run ended.

        Raises:
            OSError: if the record cannot be written.
        """
        if self._folder is not None:
            self._folder.end(end)

    def close(self) -> None:
        """Write nothing more; open spans are not recorded."""
        with self._lock:
            folder, self._folder = self._folder, None
            if folder is not None:
                folder.close()

    def new_id(self) -> int:
        """Return a new id; 0 if the run cannot be written."""
        with self._lock:
            if self._next >= self._last or self._process != process_number():
                self._renew()
            self._next += 1
            return self._next

    def _renew(self) -> None:
        """Reserve ids for this process: a forked child shares the file of events."""
        self._next, self._last = -1, 0
        if self._folder is None:
            return
        try:
            if self._process != process_number():
                shared, self._folder = self._folder, RunFolder(self._folder.path)
                self._process = process_number()
                shared.close()
            first = self._folder.first_id()
            self._next, self._last = first, first + IDS - 1
        except OSError as error:
            self._lose(error)

    def write_line(self, line: str) -> None:
        """Append an event that is already serialised."""
        try:
            with self._lock:
                if self._folder is not None:
                    self._folder.line(line.encode("ascii", "backslashreplace"))
        except OSError as error:
            self._lose(error)

    def _write(self, write: Callable[[RunFolder], None]) -> None:
        try:
            with self._lock:
                if self._folder is not None:
                    write(self._folder)
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self.lost_events += 1
        self.trouble = self.trouble or f"{type(error).__name__}: {error}"


_ALL: WeakSet[Run] = WeakSet()


def _replace_locks() -> None:
    """Replace locks after a fork: one held by another thread would never be released."""
    for run in _ALL:
        run._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)

_OPEN: list[Run] = []
"""Runs of this process, the innermost last: a new thread has an empty context."""


def enter(run: Run) -> SpanContext | None:
    """Make a run the current one of this context and process; return the one before."""
    before = CURRENT.get()
    _OPEN.append(run)
    CURRENT.set((run, 0))
    return before


def leave(run: Run, before: SpanContext | None) -> None:
    """Undo `enter`."""
    if run in _OPEN:
        _OPEN.remove(run)
    CURRENT.set(before)


def current() -> Run | None:
    """Return the run of this context, else the innermost of the process, else the one to join.

    A process that `dippm run` started, or its child, joins the run named by its environment.
    """
    here = CURRENT.get()
    if here is not None and isinstance(here[0], Run) and here[0].recorded:
        return here[0]
    if _OPEN:
        return _OPEN[-1]
    return _join_parent_run()


@cache
def _join_parent_run() -> Run | None:
    named = os.environ.get(JOIN_VARIABLE)
    if not named:
        return None
    path = Path(named)
    try:
        return Run(path.name, RunFolder(path)) if (path / "start.json").exists() else None
    except OSError:
        return None


def span(name: str, *, metrics: Iterable[CallMetric] = ()) -> SpanBlock:
    """Record a block as a span of the current run; without a run it costs almost nothing.

    >>> with span("forward"):
    ...     pass

    Args:
        name: name of the stage.
        metrics: metrics of the block, see `dippm.runs.tracking.metrics`.
    """
    return SpanBlock(current(), quoted(name), tuple(metrics))
