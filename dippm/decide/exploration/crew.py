"""`Crew`: tasks → outcomes on workers that come and go, wherever they run.

A worker that ends takes nothing with it: its task is done once more by a new one, and counts as
failed, with the reason, if that ends too. A graph stays where it was converted, so tasks of the
same architecture go to the same worker.

To add a kind of worker: write an `Engine`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dippm.decide.exploration.errors import WorkersLostError
from dippm.decide.exploration.evaluation import KEPT
from dippm.decide.exploration.question import Outcome, Task

LOSSES = 8
"""Workers lost in a row, without an outcome between them, before there is no point in going on."""
ATTEMPTS = 2
WORN_OUT = 128
"""Tasks after which a worker is replaced: exporters keep some megabytes of each conversion."""
Outcomes = Mapping[int, Outcome]


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker ended.

    Attributes:
        why: in words.
        is_final: whether another attempt would end the same way.
    """

    why: str
    is_final: bool = False


class Engine(Protocol):
    """Where workers run.

    Attributes:
        workers: how many there shall be.
    """

    workers: int

    def open(self) -> Any:
        """Start a worker."""
        ...

    def begin(self, worker: Any, task: Task) -> None:
        """Give an idle worker a task."""
        ...

    def wait(self, busy: Sequence[Any]) -> list[tuple[Any, Outcomes | Lost]]:
        """Wait until one of these workers or more have answered, or ended."""
        ...

    def close(self, worker: Any) -> None:
        """End a worker, whatever it does."""
        ...


@dataclass(slots=True, eq=False)
class _Member:
    """A worker of the crew.

    Attributes:
        worker: what the engine opened.
        kept: keys of the graphs that it holds, the last used last.
        answered: tasks that it has answered.
    """

    worker: Any
    kept: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    answered: int = 0


@dataclass(slots=True)
class _Busy:
    member: _Member
    key: Any
    task: Task
    attempt: int


@dataclass(slots=True)
class Crew:
    """Workers of one engine.

    Attributes:
        engine: where they run.
    """

    engine: Engine
    _idle: list[_Member] = field(default_factory=list)
    _busy: list[_Busy] = field(default_factory=list)
    _homes: dict[Any, _Member] = field(default_factory=dict)
    _losses: int = 0

    def answer(self, tasks: Mapping[Any, Task]) -> Iterator[Outcomes]:
        """Yield the outcomes of each task, in the order in which they come.

        Args:
            tasks: by what their graph depends on.

        Raises:
            WorkersLostError: if one worker after the other ends.
        """
        waiting = deque((key, task, 1) for key, task in tasks.items())
        while waiting or self._busy:
            self._begin_what_can(waiting)
            for worker, result in self.engine.wait([busy.member.worker for busy in self._busy]):
                busy = next(b for b in self._busy if b.member.worker is worker)
                self._busy.remove(busy)
                if isinstance(result, Lost):
                    self._retire(busy.member, result)
                    if busy.attempt < ATTEMPTS and not result.is_final:
                        waiting.appendleft((busy.key, busy.task, busy.attempt + 1))
                    else:
                        yield dict.fromkeys(busy.task.chosen, Outcome("failed", reason=result.why))
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

    def _begin_what_can(self, waiting: deque[tuple[Any, Task, int]]) -> None:
        """Begin what waits for no worker; a graph is waited for where it was converted."""
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

    def _free(self) -> _Member | None:
        """Return a worker without work; a new one while there are fewer than there shall be."""
        if self._idle:
            return self._idle.pop(0)
        is_full = len(self._busy) >= self.engine.workers
        return None if is_full else _Member(self.engine.open())

    def _begin(self, member: _Member, key: Any, task: Task, attempt: int) -> None:
        member.kept[key] = None
        member.kept.move_to_end(key)
        self._homes[key] = member
        while len(member.kept) > KEPT:
            self._homes.pop(member.kept.popitem(last=False)[0], None)
        self._busy.append(_Busy(member, key, task, attempt))
        self.engine.begin(member.worker, task)

    def _forget(self, member: _Member) -> None:
        """End a worker; what it held is held by nobody."""
        for key in member.kept:
            self._homes.pop(key, None)
        self.engine.close(member.worker)

    def _retire(self, member: _Member, lost: Lost) -> None:
        self._forget(member)
        self._losses += not lost.is_final
        if self._losses >= LOSSES:
            raise WorkersLostError(
                f"{self._losses} workers ended in a row; the last: {lost.why}",
                "Everything that was tried before is kept. See whether the machine is short of "
                "memory, use fewer workers=..., then call again with the same storage and name.",
            )
