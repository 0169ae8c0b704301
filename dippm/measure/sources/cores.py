"""CPU time and memory of the run's process tree by core.

A thread counts for the core on which the kernel last saw it, also for the time before it moved
there. Threads that start and end between two readings are missing; `tree` includes their time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from dippm.measure.readings import AbsentSource, Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, NotHere, limit_cost
from dippm.measure.sources.tree import descendants
from dippm.measure.sources.tree_process import PAGE_MB, TICK_S

FIRST = "a mean between two readings: read again"
ENDED = "every process of the tree has ended"
LEAST_S = 0.5
"""Least time between readings: the kernel counts in ticks of 10 ms."""


class CoresSource(CounterSource):
    """CPU and memory of a process tree, divided by core."""

    name = "cores"

    def __init__(self, proc: Path, root: int, exclude: Collection[int], cores: int) -> None:
        self._proc = proc
        self._root = root
        self._exclude = frozenset(exclude)
        self._cores = cores
        self.quantities = _quantities(cores)
        self._before: dict[tuple[int, int], float] = {}
        self._before_s = 0.0
        self._used: tuple[float, ...] = ()
        memory, cpu = self.quantities[:cores], self.quantities[cores:]
        self._calls = Calls(
            self.name,
            [
                CounterCall(memory, limit_cost(self._look, least_s=LEAST_S)),
                CounterCall(cpu, self._percent),
            ],
        )

    def _look(self) -> tuple[float, ...]:
        memory, used = [0.0] * self._cores, [0.0] * self._cores
        now, seen = time.monotonic(), {}
        for pid in descendants(self._root) - self._exclude:
            for thread, core, cpu_s, rss_mb in _threads(self._proc / str(pid)):
                seen[pid, thread] = cpu_s
                used[core % self._cores] += cpu_s - self._before.get((pid, thread), 0.0)
                if thread == pid:  # memory counts for the main thread's core
                    memory[core % self._cores] += rss_mb
        if not seen:
            self._used = ()
            raise NotHere(ENDED)
        passed_s = now - self._before_s
        self._used = tuple(100 * core_s / passed_s for core_s in used) if self._before else ()
        self._before, self._before_s = seen, now
        return tuple(memory)

    def _percent(self) -> tuple[float, ...]:
        if not self._used:
            raise NotHere(FIRST)
        return self._used


def open_cores(
    pid: int | None = None, *, exclude: Collection[int] = (), proc: str | os.PathLike[str] = "/proc"
) -> Source:
    """Open the cores that a process tree runs on.

    Args:
        pid: root of the tree, by default this process.
        exclude: processes that do not count.
        proc: mount point of procfs.
    """
    cores = os.cpu_count() or 1
    if not (Path(proc) / "self").exists():
        return AbsentSource(CoresSource.name, _quantities(cores), "there is no /proc here")
    return CoresSource(Path(proc), pid or os.getpid(), exclude, cores)


def _quantities(cores: int) -> tuple[Quantity, ...]:
    return (
        *(
            Quantity(f"core_{core}_rss_mb", "MiB", "tree", "resident memory of processes there")
            for core in range(cores)
        ),
        *(
            Quantity(f"core_{core}_percent", "%", "tree", "of this core, between two readings")
            for core in range(cores)
        ),
    )


def _threads(process: Path) -> Iterator[tuple[int, int, float, float]]:
    """Yield number, core, CPU seconds and resident MiB (of its process) of each thread."""
    try:
        tasks = os.listdir(process / "task")
    except OSError:  # it has just ended
        return
    for task in tasks:
        try:
            line = (process / "task" / task / "stat").read_bytes()
        except OSError:
            continue
        fields = line[line.rindex(b")") + 2 :].split()
        cpu_s = (int(fields[11]) + int(fields[12])) * TICK_S
        yield int(task), int(fields[36]), cpu_s, int(fields[21]) * PAGE_MB
