"""`running_runs`: runs that are running or waiting for their store, read from their folders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dippm.errors import RunError
from dippm.runs.store.attach import MARK
from dippm.runs.store.folder import START, RecordedRun, read_folder, spool
from dippm.runs.store.record import Start
from dippm.show.ui.selection import ListedRun
from dippm.show.ui.streams import is_number


@dataclass(frozen=True, slots=True)
class UnstoredRun:
    """A run in the spool that is not in a store yet.

    Attributes:
        folder: folder of the run.
        start: start record of the run.
        status: "running", or the final status.
        written: (name, size, modification time in ns) of each file, to detect growth.
        seconds: duration, so far if it is running.
        metrics: last reported number of each name.
    """

    folder: Path
    start: Start
    status: str
    written: tuple[tuple[str, int, int], ...]
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def recorded(self) -> RecordedRun:
        """Read the run.

        Raises:
            RunError: if it no longer exists.
        """
        return read_folder(self.folder)

    def listed(self) -> ListedRun:
        """Return its entry in the list."""
        start = self.start
        texts = (start.uuid, start.name, start.experiment, start.group, start.description)
        settings = (*start.params, *start.params.values(), *start.tags.values())
        return ListedRun(
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


def running_runs(
    known: Mapping[str, UnstoredRun], root: Path | None = None
) -> dict[str, UnstoredRun]:
    """Return the runs of a spool that are not in a store, by uuid.

    Args:
        known: former result; runs that did not grow are not read again.
        root: folder of the spool; by default that of the user.
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
        except (OSError, RunError):  # just being created or removed, or not a run
            continue
        found[run.start.uuid] = run
    return found


def _running(folder: Path, written: tuple[tuple[str, int, int], ...]) -> UnstoredRun:
    recorded = read_folder(folder)
    start, end = recorded.start, recorded.end
    ended_ns = end.at.wall_ns if end else min(time.time_ns(), max(at for _, _, at in written))
    seconds = max(0.0, (ended_ns - start.at.wall_ns) / 1e9)
    metrics = {value.name: float(value.data) for value in recorded.values if is_number(value)}
    return UnstoredRun(folder, start, end.status if end else "running", written, seconds, metrics)


def _written(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.name[:1] != "."]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
