"""What a long piece of work is doing, told to whoever asked to hear it.

The work calls `tell`; a terminal (or a test) listens with `listening`. Without a listener nothing
happens, so functions may tell freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]

_listener: ContextVar[Listener | None] = ContextVar("dippm_progress", default=None)


def tell(stage: str) -> None:
    """Say what is being done now, in a few words ("exporting", "operator 1,200 of 9,000")."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


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
