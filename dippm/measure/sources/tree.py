"""CPU, memory and I/O of a process and all its descendants, read from /proc, or by psutil.

CPU seconds never decrease: those of a child move into its parent's account when the parent reaps
it, and those of unreaped processes (daemons) are kept at their last reading and counted as lost.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.tree_process import Process, children_by_search

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
"""CPU time is read at every reading, resident memory at most 20 times a second, the rest 10."""
SHARE = 0.002
"""Share of a core: a search for new processes of t seconds is not repeated before t / SHARE."""
FULL_PERIOD_NS = 99_000_000
"""Least time between full readings: above 10 Hz only CPU time and resident memory are read."""
MEMORY_PERIOD_NS = 49_000_000
"""Above 20 Hz only CPU time is read: each file of /proc costs 15 µs with cold caches."""
PERCENT_WINDOW_NS = 500_000_000
PSS_PERIOD_NS = 5_000_000_000
PSS_NS_PER_MB = 25_000
"""Cost of walking page tables, for resident pages of 4 KiB."""
PSS_AT_ONCE_MB = 400.0
"""Larger trees delay the first walk as long as a second one, since it holds readings up."""
ROUNDING_S = 0.03
"""Largest difference without a loss between sums of two clocks that count in 10 ms."""
TOO_MANY = "more processes than files may be open: raise `ulimit -n`"
TOO_LATE = "every process of the tree had ended before the first reading"
OF_THE_LIVING = ("peak_rss_mb", "read_mb", "written_mb")
TOO_EARLY = "a mean over half a second: read again"
PSS_LATER = "walking the page tables of a large tree: not before minutes have passed"


class TreeSource:
    """A process tree; a process that was found stays in it, even if its parent has ended."""

    name = "tree"
    quantities = QUANTITIES

    def __init__(self, pid: int, *, exclude: Collection[int] = (), adopter: int = 0) -> None:
        """Open the tree of `pid`; children of the adopter are its former descendants.

        Raises:
            OSError: if the process does not exist.
        """
        self._exclude = frozenset(exclude)
        # Parents come before their children, so that CPU time handed over is never counted twice.
        self._alive: dict[int, Process] = {pid: Process(pid)}
        self._adopter = Process(adopter) if adopter else None
        self._next_full_ns = self._next_memory_ns = self._next_search_ns = self._next_pss_ns = 0
        self._last = Readings(0, {})
        self._kernel_lists_children = True
        self._closed = self._seen_alive = False
        self._gone_s = self._cpu_s = self._peak_mb = 0.0
        self._gone_mb = [0.0, 0.0]
        self._io_mb = [0.0, 0.0]
        self._lost = 0
        self._pss_mb: float | None = None
        self._opened_ns = time.monotonic_ns()
        self._absent: dict[str, str] = {}
        self._history: deque[tuple[int, float]] = deque()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes that were alive at the last reading."""
        return tuple(self._alive)

    def read(self) -> Readings:
        """Read all processes of the tree, and search for new ones."""
        now = time.monotonic_ns()
        if now < self._next_full_ns and self._alive:
            quick = self._quick(now)
            if quick is not None:
                return quick
        if self._closed:
            return Readings(now, {}, {q.name: "the source is closed" for q in QUANTITIES})
        self._update()
        self._next_full_ns, self._next_memory_ns = now + FULL_PERIOD_NS, now + MEMORY_PERIOD_NS
        if now >= self._next_search_ns:
            self._search()
            self._next_search_ns = now + int((time.monotonic_ns() - now) / SHARE)
        if not self._alive:
            return self._after_the_end(now)
        self._periodic(now)
        self._last = self._sum(now)
        return self._last

    def look_anew(self) -> None:
        """Make the next reading a full one with a search."""
        self._next_full_ns = self._next_search_ns = 0

    def close(self) -> None:
        """Close the descriptors of all processes."""
        self._closed = True
        for process in (*self._alive.values(), *filter(None, [self._adopter])):
            process.close()
        self._alive, self._adopter = {}, None

    def _quick(self, now: int) -> Readings | None:
        """Read CPU time, and resident memory if due; return None if a process has ended."""
        used_s = self._gone_s
        for process in self._alive.values():
            if not process.update_cpu():
                return None
            used_s += process.own_s + process.waited_s
        if used_s > self._cpu_s:
            self._cpu_s = used_s
        _, values, absent = self._last
        if "cpu_s" in values:
            values = {**values, "cpu_s": self._cpu_s}
            if now >= self._next_memory_ns:
                self._next_memory_ns = now + MEMORY_PERIOD_NS
                values |= self._memory()
                self._last = Readings(now, values, absent)
        return Readings(now, values, absent)

    def _memory(self) -> dict[str, float]:
        rss_mb = sum(process.update_rss() for process in self._alive.values())
        if not rss_mb:  # all have ended; a full reading will report it
            return {}
        self._peak_mb = max(self._peak_mb, rss_mb)
        return {"rss_mb": rss_mb, "peak_rss_mb": self._peak_mb}

    def _update(self) -> None:
        gone = []
        for process in self._alive.values():
            process.waited_before_s = process.waited_s
            if not process.update():
                gone.append(process)
        if gone:
            self._bury(gone)

    def _search(self) -> None:
        found = list(self._alive.values())
        if self._adopter is not None:
            found.append(self._adopter)
        by_parent = None if self._kernel_lists_children else self._by_parent()
        for process in found:  # grows while it is walked
            for pid in self._children(process, by_parent):
                if pid in self._alive or pid in self._exclude:
                    continue
                try:
                    child = Process(pid)
                except OSError as error:
                    self._note_limit(error)
                    continue  # it has ended already, and its parent accounts for it
                self._alive[pid] = child
                found.append(child)

    def _by_parent(self) -> dict[int, list[int]]:
        try:
            return children_by_search()
        except OSError as error:
            self._note_limit(error)
            return {}

    def _children(self, process: Process, by_parent: dict[int, list[int]] | None) -> list[int]:
        if by_parent is not None:
            return by_parent.get(process.pid, [])
        try:
            return process.children()
        except ProcessLookupError:
            pass  # it has just ended
        except FileNotFoundError:
            if os.path.exists(f"/proc/{process.pid}/task/{process.pid}/stat"):
                self._kernel_lists_children = False
        except OSError as error:
            self._note_limit(error)
        return []

    def _note_limit(self, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._absent |= dict.fromkeys((q.name for q in QUANTITIES), TOO_MANY)

    def _bury(self, gone: list[Process]) -> None:
        """Keep the usage of ended processes, unless an ancestor has taken it over."""
        while True:
            for process in gone:
                self._alive.pop(process.pid, None)
            groups = self._by_heir(gone)
            # Heirs were read before the end was noticed, so their accounts are read once more. One
            # that has ended meanwhile has handed everything on to its own ancestor.
            ended = [heir for heir in map(self._alive.get, groups) if heir and not heir.update()]
            if not ended:
                break
            gone = [*gone, *ended]
        for number, members in groups.items():
            self._settle(self._alive.get(number), members)
        for process in gone:
            process.close()

    def _by_heir(self, gone: list[Process]) -> dict[int, list[Process]]:
        """Return ended processes by their nearest ancestor that lives or is outside the tree."""
        parents = {process.pid: process.parent for process in gone}
        groups: dict[int, list[Process]] = {}
        for process in gone:
            heir = process.parent
            while heir not in self._alive and heir in parents:
                heir = parents[heir]
            groups.setdefault(heir, []).append(process)
        return groups

    def _settle(self, heir: Process | None, members: list[Process]) -> None:
        # CPU time of ended processes that their heir's account has not gained is kept here.
        missing_s = sum(process.own_s + process.waited_before_s for process in members)
        if heir is not None:
            missing_s -= heir.waited_s - heir.waited_before_s
            if missing_s <= ROUNDING_S:
                return
        self._lost += len(members) if heir is None else 1
        self._gone_s += missing_s
        for process in members:
            self._gone_mb[0] += process.read_mb or 0.0
            self._gone_mb[1] += process.written_mb or 0.0

    def _periodic(self, now: int) -> None:
        if "read_mb" not in self._absent:
            self._read_io()
        if "pss_mb" not in self._absent and self._is_pss_due(now):
            self._read_pss()
            spent_ns = time.monotonic_ns() - now
            self._next_pss_ns = now + max(PSS_PERIOD_NS, _rest_ns(spent_ns))

    def _is_pss_due(self, now: int) -> bool:
        if self._pss_mb is not None:
            return now >= self._next_pss_ns
        rss_mb = sum(process.rss_mb for process in self._alive.values())
        wait_ns = _rest_ns(int(rss_mb * PSS_NS_PER_MB))
        return rss_mb <= PSS_AT_ONCE_MB or now >= self._opened_ns + wait_ns

    def _read_io(self) -> None:
        for process in self._alive.values():
            try:
                process.update_io()
            except OSError as error:
                if process.update() and not process.zombie:
                    self._note(f"/proc/PID/io: {error.strerror}", "read_mb", "written_mb")
        for place, name in enumerate(("read_mb", "written_mb")):
            now_mb = sum(getattr(process, name) or 0.0 for process in self._alive.values())
            self._io_mb[place] = max(self._io_mb[place], self._gone_mb[place] + now_mb)

    def _read_pss(self) -> None:
        total_mb = 0.0
        for process in self._alive.values():
            try:
                total_mb += process.pss_mb()
            except OSError as error:
                if process.update() and not process.zombie:
                    self._note(f"/proc/PID/smaps_rollup: {error.strerror}", "pss_mb")
        self._pss_mb = total_mb

    def _note(self, reason: str, *names: str) -> None:
        self._absent |= dict.fromkeys(names, f"{reason}: run as the user of the workload")

    def _sum(self, now: int) -> Readings:
        own_s = rss_mb = 0.0
        threads = processes = 0
        for process in self._alive.values():
            own_s += process.own_s + process.waited_s
            if not process.zombie:
                rss_mb += process.rss_mb
                threads += process.threads
                processes += 1
        self._cpu_s = max(self._cpu_s, own_s + self._gone_s)
        if not processes:  # all have ended without being reaped
            return self._after_the_end(now)
        self._seen_alive = True
        self._peak_mb = max(self._peak_mb, rss_mb)
        values = {
            "cpu_s": self._cpu_s,
            "rss_mb": rss_mb,
            "peak_rss_mb": self._peak_mb,
            "threads": float(threads),
            "processes": float(processes),
            "lost_processes": float(self._lost),
            "read_mb": self._io_mb[0],
            "written_mb": self._io_mb[1],
        }
        absent = dict(self._absent)
        if self._pss_mb is None:
            absent.setdefault("pss_mb", PSS_LATER)
        else:
            values["pss_mb"] = self._pss_mb
        percent = self._percent(now)
        if percent is None:
            absent.setdefault("cpu_percent", TOO_EARLY)
        else:
            values["cpu_percent"] = percent
        for name in self._absent:
            values.pop(name, None)
        return Readings(now, values, absent)

    def _percent(self, now: int) -> float | None:
        history = self._history
        history.append((now, self._cpu_s))
        while len(history) > 2 and now - history[1][0] >= PERCENT_WINDOW_NS:
            history.popleft()
        then, before_s = history[0]
        if now - then < PERCENT_WINDOW_NS:
            return None
        return 1e11 * (self._cpu_s - before_s) / (now - then)

    def _after_the_end(self, now: int) -> Readings:
        self._cpu_s = max(self._cpu_s, self._gone_s)
        values = {
            "cpu_s": self._cpu_s,
            "peak_rss_mb": self._peak_mb,
            "lost_processes": float(self._lost),
            "read_mb": self._io_mb[0],
            "written_mb": self._io_mb[1],
        }
        unseen = {} if self._seen_alive else dict.fromkeys(OF_THE_LIVING, TOO_LATE)
        absent = unseen | self._absent
        values = {name: value for name, value in values.items() if name not in absent}
        gauges = (quantity.name for quantity in QUANTITIES if quantity.name not in values)
        return Readings(now, values, dict.fromkeys(gauges, ENDED) | absent)


def _rest_ns(spent_ns: int) -> int:
    # Walking page tables holds a lock of the workload: a tenth of the time for searches.
    return int(spent_ns * 10 / SHARE)


def open_tree(pid: int | None = None, *, exclude: Collection[int] = (), adopter: int = 0) -> Source:
    """Open the tree of a process.

    Args:
        pid: root of the tree, by default this process.
        exclude: processes that do not count, with their descendants; for instance the sampler.
        adopter: subreaper above the root, whose other children have left the tree; 0 for none.
    """
    root = pid or os.getpid()
    if not sys.platform.startswith("linux"):
        return open_psutil_tree(root, exclude=exclude)
    try:
        return TreeSource(root, exclude=exclude, adopter=adopter)
    except OSError as error:
        reason = f"process {root} cannot be read: {error.strerror or error}"
        return AbsentSource(TreeSource.name, QUANTITIES, reason)


def descendants(pid: int) -> set[int]:
    """Return `pid` and the ids of all its living descendants."""
    if not os.path.isdir("/proc/self"):
        return {pid}
    by_parent = children_by_search()
    return {pid, *_below(pid, by_parent)}


def _below(pid: int, by_parent: dict[int, list[int]]) -> Iterator[int]:
    for child in by_parent.get(pid, ()):
        yield child
        yield from _below(child, by_parent)


# The process tree on systems without /proc: slower, by psutil.


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
