"""Signals that ask this process to end let it undo first what it did to devices."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
HELD = (signal.SIGINT, *ENDING)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Turn signals that would end this process at once into `SystemExit(128 + number)`.

    A handler of the program's own, or an ignored signal, stays; so does everything if this is not
    the main thread, where no handler can be set.
    """
    mine: list[int] = []
    if threading.current_thread() is threading.main_thread():
        mine = [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL]
        for number in mine:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number in mine:
            if signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back the signals that would break off what undoes; they come when it is done.

    Their handlers run in the main thread only, so in another one nothing has to be held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for late in dict.fromkeys(came):
            signal.raise_signal(late)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
