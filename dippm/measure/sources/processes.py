"""Single processes of the run's tree: the first eight, each in a slot of its own.

A slot belongs to one process for good, and its pid is a quantity. Process names are not recorded:
programs may change them, and they may contain private data.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from dippm.measure.readings import AbsentSource, Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, NotHere, limit_cost
from dippm.measure.sources.tree import descendants
from dippm.measure.sources.tree_process import Process

PLACES = 8
EMPTY = "the run had no such process yet"
ENDED = "the process has ended"


class ProcessesSource(CounterSource):
    """CPU time and memory of single processes of a tree."""

    name = "processes"

    def __init__(self, root: int, exclude: Collection[int]) -> None:
        self.quantities = QUANTITIES
        self._root = root
        self._exclude = frozenset(exclude)
        self._places: list[Process] = []
        self._gone: set[Process] = set()
        self._looked = limit_cost(self._look)
        calls = [CounterCall(QUANTITIES[-1:], self._count)]
        calls += [
            CounterCall(QUANTITIES[3 * place : 3 * place + 3], self._of(place))
            for place in range(PLACES)
        ]
        self._calls = Calls(self.name, calls)

    def close(self) -> None:
        """Release the processes."""
        super().close()
        for process in self._places:
            process.close()

    def _count(self) -> tuple[float, ...]:
        return self._looked()

    def _look(self) -> tuple[float, ...]:
        known = {process.pid for process in self._places if process not in self._gone}
        living = descendants(self._root) - self._exclude
        for pid in sorted(living - known):
            if len(self._places) == PLACES:
                break
            try:
                self._places.append(Process(pid))
            except OSError:  # it has just ended
                continue
        held = {process.pid for process in self._places if process not in self._gone}
        return (float(len(living - held)),)

    def _of(self, place: int) -> _Reader:
        return _Reader(self._places, self._gone, place)


class _Reader:
    """Reads the process in a slot."""

    def __init__(self, places: list[Process], gone: set[Process], place: int) -> None:
        self._places = places
        self._gone = gone
        self._place = place

    def __call__(self) -> tuple[float, ...]:
        if self._place >= len(self._places):
            raise NotHere(EMPTY)
        process = self._places[self._place]
        if process not in self._gone and (not process.update() or process.zombie):
            self._gone.add(process)
        if process in self._gone:
            raise NotHere(ENDED)
        return float(process.pid), process.own_s, process.rss_mb


def open_processes(pid: int | None = None, *, exclude: Collection[int] = ()) -> Source:
    """Open the processes of a tree.

    Args:
        pid: root of the tree, by default this process.
        exclude: processes that do not count.
    """
    if not Path("/proc/self").exists():
        return AbsentSource(ProcessesSource.name, QUANTITIES, "there is no /proc here")
    return ProcessesSource(pid or os.getpid(), exclude)


def _quantities() -> Iterator[Quantity]:
    for place in range(1, PLACES + 1):
        yield Quantity(f"process_{place}_pid", "", "tree", "its number")
        yield Quantity(f"process_{place}_cpu_s", "s", "tree", "CPU time of it", counter=True)
        yield Quantity(f"process_{place}_rss_mb", "MiB", "tree", "resident memory of it")
    yield Quantity("more", "processes", "tree", "alive, and without a place")


QUANTITIES = tuple(_quantities())
