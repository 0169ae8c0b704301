"""`Store`: the folder of a collected set, with its journal and shards."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dippm.errors import DippmError
from dippm.measure.collected import StorageError
from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.journal import Journal, Row, encode, read_journal, write_whole
from dippm.measure.collected.kernels import without_kernels
from dippm.measure.collected.labels import why_not_used
from dippm.measure.collected.shards import compact, read_shard, shards, without_doubles, write_shard

SHARD_ROWS = 500
MERGED_ROWS = 5000
KEY = (
    *("row_id", "configuration_id", "repeat", "status", "campaign"),
    *("device_kind", "other_processes", "throttle_reasons", "latency_ms", "latency_sd_ms"),
)
Key = tuple[str, int]
Say = Callable[[str], None]


class Store:
    """Writes rows, and knows the points that are done.

    Args:
        folder: folder of the set, created if missing; its lock must be held.
        say: called with a message about each problem.
        wait_s: time to wait for space on a full disk before giving up.
        stopping: returns whether to stop, which ends the wait.

    Attributes:
        statuses: status of each (configuration_id, repeat); "ok" wins over a failure.
        disturbed: number of measurements of each point that has rows but no label.
        campaigns: number of rows by campaign and status.
        total: number of rows in the folder.

    Raises:
        DamagedRowsError: if a shard cannot be read.
    """

    def __init__(
        self, folder: Path, *, say: Say, wait_s: float = 60.0, stopping: Callable[[], bool] = bool
    ) -> None:
        self.folder, self._say, self._wait_s, self._stopping = folder, say, wait_s, stopping
        kept = [row for path in shards(folder) for row in read_shard(path, KEY)]
        _drop_rolled(folder / JOURNAL, {row["row_id"] for row in kept})
        self._journal = Journal(folder / JOURNAL)
        if self._journal.set_aside:
            say(f"{self._journal.set_aside} damaged lines were moved to {JOURNAL}.torn")
        self.statuses: dict[Key, str] = {}
        self.disturbed: Counter[Key] = Counter()
        self._labelled: set[Key] = set()
        self.campaigns: defaultdict[str, Counter[str]] = defaultdict(Counter)
        rows = list(without_doubles([*kept, *self._journal.rows()]))
        self.total = len(rows)
        for row in rows:
            self._note(row)

    def append(self, row: Row) -> None:
        """Write a row to disk, waiting for space if there is none.

        Raises:
            StorageError: if it is still not written after the wait; only this row is lost.
        """
        self._write(row)
        self._note(row)
        self.total += 1
        if self._journal.count % SHARD_ROWS == 0:
            self.roll()

    def roll(self) -> None:
        """Move the journal's rows to a shard; after a failure, which is reported, they stay."""
        if not self._journal.count:
            return
        try:
            write_shard(self.folder, self._journal.rows())
        except OSError as error:
            self._say(f"no shard could be written ({error}); the rows stay in {JOURNAL}")
            return
        self._journal.clear()

    def close(self) -> None:
        """Leave few files: all rows in shards, small neighbours merged."""
        self.roll()
        self._journal.close()
        try:
            compact(self.folder, MERGED_ROWS)
        except (OSError, DippmError) as error:
            self._say(f"shards could not be merged ({error}); they stay as they are")

    def _write(self, row: Row) -> None:
        deadline = time.monotonic() + self._wait_s
        reported = False
        while True:
            try:
                return self._journal.append(row)
            except StorageError as error:
                if time.monotonic() >= deadline or self._stopping():
                    raise
                if not reported:
                    self._say(f"{error.message}; waiting {self._wait_s:.0f} s for space")
                reported = True
                time.sleep(0.5)

    def _note(self, row: Row) -> None:
        self.campaigns[row["campaign"]][row["status"]] += 1
        key = (row["configuration_id"], row["repeat"])
        if self.statuses.get(key) != "ok":
            self.statuses[key] = row["status"]
        if row["status"] == "ok" and key not in self._labelled:
            if why_not_used(row):
                self.disturbed[key] += 1
            else:
                self._labelled.add(key)
                del self.disturbed[key]


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield every row of a collected set once, even while a collector is writing.

    Raises:
        DamagedRowsError: if a shard cannot be read.
    """
    journal, _ = read_journal(folder / JOURNAL)  # first: its rows may move to a shard meanwhile
    in_shards = (row for path in shards(folder) for row in read_shard(path))
    in_journal = map(without_kernels, journal)
    yield from without_doubles(row for rows in (in_shards, in_journal) for row in rows)


def _drop_rolled(path: Path, in_shards: set[str]) -> None:
    """Clear rows from the journal that are in a shard: a crash may come between the two steps."""
    rows, _ = read_journal(path)
    remaining = [row for row in rows if row["row_id"] not in in_shards]
    if len(remaining) < len(rows):
        write_whole(path, b"".join(map(encode, remaining)))
