"""Progress of long work, reported to a listener.

The work calls `tell`; a terminal (or a test) receives the stages with `listening`. Without a
listener `tell` does nothing, so functions may call it freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str], None]
Item = TypeVar("Item")

EACH = 1000
"""Number of items between two reports."""

_listener: ContextVar[Listener | None] = ContextVar("dippm_progress", default=None)
_sizer: ContextVar[Callable[[int], None] | None] = ContextVar("dippm_size", default=None)


def tell(stage: str) -> None:
    """Report the present stage in a few words ("exporting", "operator 1,200 of 9,000")."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


def counted(items: Iterable[Item], total: int, stage: str = "operator") -> Iterator[Item]:
    """Yield the operators of a graph, and report how many are done, unless the graph is small.

    Args:
        items: items to yield.
        total: number of items; time limits grow with it, see `sized`.
        stage: description of the work on each, for instance "translating operator".
    """
    sizer = _sizer.get()
    if sizer is not None:
        sizer(total)
    for done, item in enumerate(items):
        if done % EACH == 0 and total > EACH:
            tell(f"{stage} {done:,} of {total:,}")
        yield item


@contextmanager
def sized(sizer: Callable[[int], None]) -> Iterator[None]:
    """Receive the sizes of graphs that are counted inside the block."""
    token = _sizer.set(sizer)
    try:
        yield
    finally:
        _sizer.reset(token)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Receive the stages reported inside the block, in this thread and context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Report a stage, and prefix its name to all stages reported inside the block."""
    tell(name)
    outer = _listener.get()
    if outer is None:
        yield
        return
    with listening(lambda words: outer(f"{name}: {words}")):
        yield
