"""`running_runs`: runs that go on, or wait for their store, read from their folders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dippm.errors import RunError
from dippm.runs.store.attach import MARK
from dippm.runs.store.folder import START, RecordedRun, read_folder, spool
from dippm.runs.store.record import Start
from dippm.show.ui.selection import Listed
from dippm.show.ui.streams import is_number


@dataclass(frozen=True, slots=True)
class Running:
    """A run in the spool that no store has yet.

    Attributes:
        folder: of it.
        start: how it started.
        status: "running", or how it ended.
        written: of all its files, name, size and time of change in ns: what tells that it grew.
        seconds: how long it took, or so far.
        metrics: the last number of each name that it told.
    """

    folder: Path
    start: Start
    status: str
    written: tuple[tuple[str, int, int], ...]
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def recorded(self) -> RecordedRun:
        """Read it.

        Raises:
            RunError: if it is gone.
        """
        return read_folder(self.folder)

    def listed(self) -> Listed:
        """Return what a list shows."""
        start = self.start
        texts = (start.uuid, start.name, start.experiment, start.group, start.description)
        settings = (*start.params, *start.params.values(), *start.tags.values())
        return Listed(
            start.uuid,
            start.name,
            start.experiment,
            start.group,
            self.status,
            start.at.wall_ns,
            self.seconds,
            start.description,
            self.metrics,
            "\n".join((*texts, *settings)).casefold(),
            start.params,
            start.tags,
        )


def running_runs(known: Mapping[str, Running], root: Path | None = None) -> dict[str, Running]:
    """Return the runs of a spool that no store has, by uuid.

    Args:
        known: what this gave before: what did not grow is not read again.
        root: the spool, by default that of the user.
    """
    before = {run.folder: run for run in known.values()}
    found = {}
    for file in sorted((root or spool()).glob(f"*/{START}")):
        folder = file.parent
        try:
            written = _written(folder)
            run = before.get(folder)
            if any(name == MARK for name, _, _ in written):
                continue
            if run is None or run.written != written:
                run = _running(folder, written)
        except (OSError, RunError):  # it is just being made, or removed, or is no run
            continue
        found[run.start.uuid] = run
    return found


def _running(folder: Path, written: tuple[tuple[str, int, int], ...]) -> Running:
    recorded = read_folder(folder)
    start, end = recorded.start, recorded.end
    ended_ns = end.at.wall_ns if end else min(time.time_ns(), max(at for _, _, at in written))
    seconds = max(0.0, (ended_ns - start.at.wall_ns) / 1e9)
    metrics = {told.name: float(told.data) for told in recorded.values if is_number(told)}
    return Running(folder, start, end.status if end else "running", written, seconds, metrics)


def _written(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.name[:1] != "."]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
