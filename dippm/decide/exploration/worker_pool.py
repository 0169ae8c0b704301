"""`WorkerPool`: tasks → outcomes on workers that may end at any time, wherever they run.

The task of a worker that ends is repeated once by a new one, and fails, with the reason, if that
ends too. A graph stays where it was converted, so tasks of one architecture go to one worker.

To add a kind of worker: write an `Engine`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dippm.decide.exploration.errors import WorkersLostError
from dippm.decide.exploration.evaluation import KEPT, DesignOutcome, Task

LOSSES = 8
"""Workers lost in a row, without an outcome between them, after which the search gives up."""
ATTEMPTS = 2
WORN_OUT = 128
"""Tasks after which a worker is replaced: exporters keep some megabytes of each conversion."""
DesignOutcomes = Mapping[int, DesignOutcome]


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that ended before it answered.

    Attributes:
        why: reason in words.
        is_final: whether another attempt would end the same way.
    """

    why: str
    is_final: bool = False


class Engine(Protocol):
    """Starts workers and runs tasks on them.

    Attributes:
        workers: largest number of workers at a time.
    """

    workers: int

    def open(self) -> Any:
        """Start a worker."""
        ...

    def begin(self, worker: Any, task: Task) -> None:
        """Give an idle worker a task."""
        ...

    def wait(self, busy: Sequence[Any]) -> list[tuple[Any, DesignOutcomes | LostWorker]]:
        """Wait until at least one of these workers has answered or ended."""
        ...

    def close(self, worker: Any) -> None:
        """End a worker, busy or not."""
        ...


@dataclass(slots=True, eq=False)
class _PoolWorker:
    """A worker and the graphs that it holds.

    Attributes:
        worker: worker of the engine.
        kept: keys of its graphs, the most recently used last.
        answered: number of tasks it has answered.
    """

    worker: Any
    kept: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    answered: int = 0


@dataclass(slots=True)
class _RunningTask:
    member: _PoolWorker
    key: Any
    task: Task
    attempt: int


@dataclass(slots=True)
class WorkerPool:
    """Workers of one engine.

    Attributes:
        engine: engine that runs the workers.
    """

    engine: Engine
    _idle: list[_PoolWorker] = field(default_factory=list)
    _busy: list[_RunningTask] = field(default_factory=list)
    _homes: dict[Any, _PoolWorker] = field(default_factory=dict)
    _losses: int = 0

    def answer(self, tasks: Mapping[Any, Task]) -> Iterator[DesignOutcomes]:
        """Yield the outcomes of each task as they arrive.

        Args:
            tasks: task by key of its graph.

        Raises:
            WorkersLostError: if LOSSES workers in a row end.
        """
        waiting = deque((key, task, 1) for key, task in tasks.items())
        while waiting or self._busy:
            self._begin_ready(waiting)
            for worker, result in self.engine.wait([busy.member.worker for busy in self._busy]):
                busy = next(b for b in self._busy if b.member.worker is worker)
                self._busy.remove(busy)
                if isinstance(result, LostWorker):
                    self._retire(busy.member, result)
                    if busy.attempt < ATTEMPTS and not result.is_final:
                        waiting.appendleft((busy.key, busy.task, busy.attempt + 1))
                    else:
                        yield dict.fromkeys(
                            busy.task.chosen, DesignOutcome("failed", reason=result.why)
                        )
                else:
                    self._losses = 0
                    busy.member.answered += 1
                    if busy.member.answered < WORN_OUT:
                        self._idle.append(busy.member)
                    else:
                        self._forget(busy.member)
                    yield result

    def close(self) -> None:
        """End all workers."""
        for member in (*self._idle, *(busy.member for busy in self._busy)):
            self.engine.close(member.worker)
        self._idle.clear()
        self._busy.clear()

    def _begin_ready(self, waiting: deque[tuple[Any, Task, int]]) -> None:
        """Begin tasks on free workers; a graph that a busy worker holds waits for that worker."""
        for item in list(waiting):
            member = self._homes.get(item[0])
            if member is None:
                member = self._free()
            elif member in self._idle:
                self._idle.remove(member)
            else:
                continue
            if member is not None:
                waiting.remove(item)
                self._begin(member, *item)

    def _free(self) -> _PoolWorker | None:
        """Return an idle worker, or a new one while there are fewer than the engine allows."""
        if self._idle:
            return self._idle.pop(0)
        is_full = len(self._busy) >= self.engine.workers
        return None if is_full else _PoolWorker(self.engine.open())

    def _begin(self, member: _PoolWorker, key: Any, task: Task, attempt: int) -> None:
        member.kept[key] = None
        member.kept.move_to_end(key)
        self._homes[key] = member
        while len(member.kept) > KEPT:
            self._homes.pop(member.kept.popitem(last=False)[0], None)
        self._busy.append(_RunningTask(member, key, task, attempt))
        self.engine.begin(member.worker, task)

    def _forget(self, member: _PoolWorker) -> None:
        """End a worker and forget which graphs it held."""
        for key in member.kept:
            self._homes.pop(key, None)
        self.engine.close(member.worker)

    def _retire(self, member: _PoolWorker, lost: LostWorker) -> None:
        self._forget(member)
        self._losses += not lost.is_final
        if self._losses >= LOSSES:
            raise WorkersLostError(
                f"{self._losses} workers ended in a row; the last: {lost.why}",
                "Everything that was tried before is kept. See whether the machine is short of "
                "memory, use fewer workers=..., then call again with the same storage and name.",
            )
