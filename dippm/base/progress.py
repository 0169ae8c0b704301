"""What a long piece of work is doing, told to whoever asked to hear it.

The work calls `tell`; a terminal (or a test) listens with `listening`. Without a listener nothing
happens, so functions may tell freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[str], None]
Item = TypeVar("Item")

EACH = 1000
"""So many items are worth telling of."""

_listener: ContextVar[Listener | None] = ContextVar("dippm_progress", default=None)
_sizer: ContextVar[Callable[[int], None] | None] = ContextVar("dippm_size", default=None)


def tell(stage: str) -> None:
    """Say what is being done now, in a few words ("exporting", "operator 1,200 of 9,000")."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


def counted(items: Iterable[Item], total: int, stage: str = "operator") -> Iterator[Item]:
    """Yield the operators of a graph, and tell how many are done, of a small graph nothing.

    Args:
        items: what to yield.
        total: how many they are; limits of time grow with it, see `sized`.
        stage: what is done with each, for instance "translating operator".
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
    """Hear of how many operators the graphs are that are counted inside the block."""
    token = _sizer.set(sizer)
    try:
        yield
    finally:
        _sizer.reset(token)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what is told inside the block, in this thread and context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell a stage, and put its name before everything that is told inside the block."""
    tell(name)
    outer = _listener.get()
    if outer is None:
        yield
        return
    with listening(lambda words: outer(f"{name}: {words}")):
        yield
