"""`Library`: the runs of a store and those still running, read by one thread for all visitors.

A visitor never waits for the store: data that is not in memory is requested, and arrives later.
`version` increases whenever something arrived.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dippm.errors import DippmError, RunError
from dippm.runs.store.attach import MARK
from dippm.runs.store.folder import START, RecordedRun, read_folder, spool
from dippm.runs.store.record import Start
from dippm.runs.store.runs import RunStore, open_store
from dippm.runs.store.stored_run import StoredRun
from dippm.show.ui.opened import (
    OpenedRun,
    RunRecord,
    opened_of_folder,
    opened_of_store,
    record_of_folder,
    record_of_store,
)
from dippm.show.ui.selection import ListedRun
from dippm.show.ui.streams import is_number

MOST_RUNS, NEWEST = 20_000, 100
LIST_EVERY_S = 15.0
LIST_ANYWAY_S = 300.0
"""Interval after which the store is listed again even if its file did not change."""
LOOK_EVERY_S = 1.0
MOST_BYTES = 2**30
MOST_RECORDS = 20
GROWING_SHARE = 0.1
"""Share of the time for re-reading a growing run: one of some hours takes seconds to read."""


class Library:
    """Runs of a store, and runs that are still running.

    Attributes:
        version: number that increases with every change.
        trouble: why the store cannot be read at the moment; "" if it can.
    """

    def __init__(
        self,
        store: str | None = None,
        spool: Path | None = None,
        *,
        most_bytes: int = MOST_BYTES,
        growing_share: float = GROWING_SHARE,
        opener: Callable[[str | None], RunStore] = open_store,
    ) -> None:
        """Prepare to read; `start` starts the thread.

        Args:
            store: address of the store, as `open_store` takes it.
            spool: folder of running runs; by default that of the user.
            most_bytes: largest size of samples in memory; the least recently used ones go first.
            growing_share: share of the time in which a growing run may be re-read.
            opener: function that opens the store.
        """
        self.version = 0
        self.trouble = ""
        self._store, self._spool, self._opener = store, spool, opener
        self._most_bytes, self._growing_share = most_bytes, growing_share
        self._source: RunStore | None = None
        self._stored: dict[str, StoredRun] = {}
        self._running: dict[str, UnstoredRun] = {}
        self._listed: tuple[ListedRun, ...] = ()
        self._opened: OrderedDict[str, OpenedRun] = OrderedDict()
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._read_with: dict[str, int] = {}
        self._failed: dict[str, str] = {}
        self._records: OrderedDict[str, RunRecord] = OrderedDict()
        self._record_asked: OrderedDict[str, None] = OrderedDict()
        self._record_rests_until: dict[str, float] = {}
        self._grown: set[str] = set()
        self._rests_until: dict[str, float] = {}
        self._listed_at = float("-inf")
        self._list_every_s = LIST_EVERY_S
        self._listed_written: tuple[tuple[int, int], ...] = ()
        self._has_listed = False
        self._turn = threading.Condition()
        self._ended = False

    def start(self) -> None:
        """Read in the background until `close`."""
        threading.Thread(target=self._read_on, name="library", daemon=True).start()

    def close(self) -> None:
        """Stop reading."""
        with self._turn:
            self._ended = True
            self._turn.notify_all()

    @property
    def asked(self) -> str:
        """Address of the store as given; "" for the user's own."""
        return self._store or ""

    @property
    def has_listed(self) -> bool:
        """Whether the store was read once."""
        return self._has_listed

    @property
    def place(self) -> str:
        """Address of the store for people."""
        return self._source.location.shown() if self._source else self._store or "the store"

    def runs(self) -> tuple[ListedRun, ...]:
        """Return all runs, newest first."""
        with self._turn:
            return self._listed

    def opened(self, uuids: Iterable[str]) -> dict[str, OpenedRun]:
        """Return the runs that are in memory, and request the others."""
        found = {}
        with self._turn:
            for uuid in uuids:
                if uuid in self._opened:
                    self._opened.move_to_end(uuid)
                    found[uuid] = self._opened[uuid]
                elif uuid not in self._failed:
                    self._asked[uuid] = None
            if self._asked:
                self._turn.notify_all()
        return found

    def record(self, uuid: str) -> RunRecord | None:
        """Return the record of a run; None if it is not in memory, and then request it."""
        with self._turn:
            found = self._records.get(uuid)
            rests = self._record_rests_until.get(uuid, 0.0) > time.monotonic()
            is_new = found is None or (uuid in self._running and not rests)
            if uuid not in self._failed and is_new:
                self._record_asked[uuid] = None
                self._turn.notify_all()
            return found

    def artifact(self, uuid: str, name: str) -> Path | None:
        """Return a copy of an artifact of a stored run; None if there is no such run.

        Raises:
            RunError: if the run has no such artifact.
            StoreError: if the store cannot be read.
        """
        with self._turn:
            stored = self._stored.get(uuid)
        return None if stored is None else stored.artifact(name)

    def failures(self, uuids: Iterable[str]) -> dict[str, str]:
        """Return why runs cannot be read, by uuid."""
        with self._turn:
            return {uuid: self._failed[uuid] for uuid in uuids if uuid in self._failed}

    def read_at(self, uuid: str) -> int:
        """Return the version at which a run was last read; 0 if it is not in memory."""
        with self._turn:
            return self._read_with.get(uuid, 0) if uuid in self._opened else 0

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait until the version exceeds this one, and return it."""
        with self._turn:
            self._turn.wait_for(lambda: self.version > version or self._ended, timeout_s)
            return self.version

    def look(self) -> None:
        """Read changes and requested runs once; the thread repeats this."""
        self._look_at_running()
        if self._must_list():
            self._list()
        self._read_records()
        self._read_asked()

    def _read_on(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # if the thread ended, the page would never change again
                self._say(f"reading failed: {type(error).__name__}: {error}")
            with self._turn:
                self._turn.wait_for(
                    lambda: self._ended or self._asked or self._record_asked, LOOK_EVERY_S
                )
                if self._ended:
                    return

    def _must_list(self) -> bool:
        """Return whether the store may have changed and was not read just now."""
        waited_s = time.monotonic() - self._listed_at
        if waited_s < self._list_every_s:
            return False
        return waited_s >= LIST_ANYWAY_S or self._written() != self._listed_written

    def _written(self) -> tuple[tuple[int, int], ...] | None:
        """Return size and modification time of the store's files; None if it is not a file."""
        file = self._source.location.file if self._source else None
        if file is None:
            return None
        written = (file, file.with_name(f"{file.name}-wal"))
        states = [path.stat() for path in written if path.exists()]
        return tuple((state.st_size, state.st_mtime_ns) for state in states)

    def _list(self) -> None:
        began = self._listed_at = time.monotonic()
        self._listed_written = self._written() or ()
        trouble, stored = "", self._stored
        try:
            if self._source is None:
                self._source = self._opener(self._store)
            if not self._has_listed:  # show the newest runs while the others are read
                stored = {run.uuid: run for run in self._source.runs(limit=NEWEST)}
                with self._turn:
                    self._stored = stored
                    self._changed()
            stored = {run.uuid: run for run in self._source.runs(limit=MOST_RUNS)}
        except DippmError as error:
            trouble = str(error)
        took_s = time.monotonic() - began
        self._list_every_s = max(LIST_EVERY_S, took_s / self._growing_share)
        with self._turn:
            is_first, self._has_listed = not self._has_listed, trouble == "" or self._has_listed
            if is_first or (stored, trouble) != (self._stored, self.trouble):
                self._stored, self.trouble = stored, trouble
                self._changed()

    def _look_at_running(self) -> None:
        found = running_runs(self._running, self._spool)
        with self._turn:
            news = (uuid for uuid, run in found.items() if self._running.get(uuid) != run)
            self._grown.update(uuid for uuid in news if uuid in self._opened)
            now = time.monotonic()
            ready = {uuid for uuid in self._grown if self._rests_until.get(uuid, now) <= now}
            self._asked.update(dict.fromkeys(ready))
            self._grown -= ready
            if found == self._running:
                return
            ended = self._running.keys() - found.keys()
            for uuid in ended:
                self._opened.pop(uuid, None)  # the store has all of it
                self._records.pop(uuid, None)
            if ended:
                self._listed_at = float("-inf")
            self._running = found
            self._changed()

    def _changed(self) -> None:
        """Increase the version and notify waiters; the lock is held."""
        listed = [run.listed() for run in self._running.values()]
        listed += [_list_entry(o) for uuid, o in self._stored.items() if uuid not in self._running]
        self._listed = tuple(sorted(listed, key=lambda run: -run.wall_ns))
        self._rise()

    def _say(self, trouble: str) -> None:
        with self._turn:
            if trouble != self.trouble:
                self.trouble = trouble
                self._rise()

    def _rise(self) -> None:
        self.version += 1
        self._turn.notify_all()

    def _read_records(self) -> None:
        while True:
            with self._turn:
                if not self._record_asked or self._ended:
                    return
                uuid, _ = self._record_asked.popitem(last=False)
                running, stored = self._running.get(uuid), self._stored.get(uuid)
            found, reason, began = None, "it is not in this store", time.monotonic()
            try:
                if running is not None:
                    found = record_of_folder(running.recorded())
                elif stored is not None:
                    found = record_of_store(stored)
            except (DippmError, OSError) as error:
                reason = str(error)
            took_s = max(time.monotonic() - began, LOOK_EVERY_S * self._growing_share)
            with self._turn:
                self._record_rests_until[uuid] = began + took_s / self._growing_share
                if found is not None and found != self._records.get(uuid):
                    self._records[uuid] = found
                    if len(self._records) > MOST_RECORDS:
                        self._records.popitem(last=False)
                    self._rise()
                elif found is None and running is None and self._has_listed:
                    self._failed[uuid] = reason
                    self._rise()

    def _read_asked(self) -> None:
        while True:
            with self._turn:
                if not self._asked or self._ended:
                    return
                uuid, _ = self._asked.popitem(last=False)
                running, stored = self._running.get(uuid), self._stored.get(uuid)
            self._read(uuid, running, stored)

    def _read(self, uuid: str, running: UnstoredRun | None, stored: StoredRun | None) -> None:
        reason, opened = "it is not in this store", None
        began = time.monotonic()
        try:
            if running is not None:
                opened = opened_of_folder(running.recorded())
            elif stored is not None and self._source is not None:
                opened = opened_of_store(stored)
                self._source.forget(stored)
        except (DippmError, OSError) as error:
            reason = str(error)
        ended = time.monotonic()
        with self._turn:
            if running is not None:
                self._rests_until[uuid] = ended + (ended - began) * (1 / self._growing_share - 1)
            if opened is None:
                if running is None and (self._stored or self.trouble == ""):
                    self._failed[uuid] = reason
            else:
                self._opened[uuid] = opened
                self._opened.move_to_end(uuid)
                self._shrink()
                self._read_with[uuid] = self.version + 1
            self._rise()

    def _shrink(self) -> None:
        size_bytes = sum(opened.size_bytes for opened in self._opened.values())
        while size_bytes > self._most_bytes and len(self._opened) > 1:
            _, oldest = self._opened.popitem(last=False)
            size_bytes -= oldest.size_bytes


def _list_entry(run: StoredRun) -> ListedRun:
    return ListedRun(
        run.uuid,
        run.name,
        run.experiment,
        run.group,
        run.status,
        run.wall_ns,
        run.seconds,
        run.description,
        run.metrics,
        run.words,
        run.params,
        run.tags,
    )


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
            written = _files_in(folder)
            run = before.get(folder)
            if any(name == MARK for name, _, _ in written):
                continue
            if run is None or run.written != written:
                run = _read_running(folder, written)
        except (OSError, RunError):  # just being created or removed, or not a run
            continue
        found[run.start.uuid] = run
    return found


def _read_running(folder: Path, written: tuple[tuple[str, int, int], ...]) -> UnstoredRun:
    recorded = read_folder(folder)
    start, end = recorded.start, recorded.end
    ended_ns = end.at.wall_ns if end else min(time.time_ns(), max(at for _, _, at in written))
    seconds = max(0.0, (ended_ns - start.at.wall_ns) / 1e9)
    metrics = {value.name: float(value.data) for value in recorded.values if is_number(value)}
    return UnstoredRun(folder, start, end.status if end else "running", written, seconds, metrics)


def _files_in(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.name[:1] != "."]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
