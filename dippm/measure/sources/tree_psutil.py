"""The process tree on systems without /proc: slower, by psutil."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source

# Quantities of a process tree, independent of the implementation.
#
# CPU time is read at every reading, resident memory at most 20 times a second, the rest 10 times.


ENDED = "every process of the tree has ended"
QUANTITIES = (
    Quantity("cpu_s", "s", "tree", "CPU time of all threads, ended ones too", counter=True),
    Quantity("cpu_percent", "%", "tree", "of one core, mean of the last half second"),
    Quantity("rss_mb", "MiB", "tree", "resident memory; shared pages count in each process"),
    Quantity("peak_rss_mb", "MiB", "tree", "most of the readings so far"),
    Quantity("pss_mb", "MiB", "tree", "resident memory, shared pages divided; every 5 s at most"),
    Quantity("threads", "threads", "tree", "alive"),
    Quantity("processes", "processes", "tree", "alive"),
    Quantity("lost_processes", "processes", "tree", "ended unseen by any ancestor", counter=True),
    Quantity("read_mb", "MiB", "tree", "from storage", counter=True),
    Quantity("written_mb", "MiB", "tree", "to storage", counter=True),
)


MB = 2**20
UNCOUNTED = "psutil cannot tell"


class PsutilTreeSource:
    """A process tree by psutil; ended processes count with their last reading."""

    name = "tree"
    quantities = QUANTITIES

    def __init__(self, psutil: Any, pid: int, exclude: Collection[int]) -> None:
        self._psutil = psutil
        self._root = psutil.Process(pid)
        self._exclude = frozenset(exclude)
        self._used_s: dict[tuple[int, float], float] = {}
        self._peak_mb = 0.0
        self._before: tuple[int, float] | None = None

    def read(self) -> Readings:
        """Read all processes of the tree."""
        now = time.monotonic_ns()
        rss_mb, threads, processes = 0.0, 0, 0
        for process in self._alive():
            try:
                times, memory = process.cpu_times(), process.memory_info()
                key = (process.pid, process.create_time())
                self._used_s[key] = times.user + times.system
                rss_mb += memory.rss / MB
                threads += process.num_threads()
                processes += 1
            except self._psutil.Error:
                continue
        self._peak_mb = max(self._peak_mb, rss_mb)
        cpu_s = sum(self._used_s.values())
        values = {"cpu_s": cpu_s, "peak_rss_mb": self._peak_mb}
        if processes:
            values |= {"rss_mb": rss_mb, "threads": threads, "processes": float(processes)}
        values |= self._percent(now, cpu_s)
        reason = UNCOUNTED if processes else ENDED
        absent = {q.name: reason for q in QUANTITIES if q.name not in values}
        return Readings(now, values, absent)

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _alive(self) -> list[Any]:
        try:
            found = [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            return []
        return [process for process in found if process.pid not in self._exclude]

    def _percent(self, now: int, cpu_s: float) -> dict[str, float]:
        before, self._before = self._before, (now, cpu_s)
        if before is None or now == before[0]:
            return {}
        return {"cpu_percent": 1e11 * (cpu_s - before[1]) / (now - before[0])}


def open_psutil_tree(pid: int, *, exclude: Collection[int] = ()) -> Source:
    """Open the tree of a process with psutil."""
    try:
        import psutil
    except ImportError:
        reason = "no /proc here, and psutil is not installed: pip install psutil"
        return AbsentSource(PsutilTreeSource.name, QUANTITIES, reason)
    try:
        return PsutilTreeSource(psutil, pid, exclude)
    except psutil.Error as error:
        return AbsentSource(PsutilTreeSource.name, QUANTITIES, str(error))
