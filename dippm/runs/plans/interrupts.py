"""Ctrl-C and other signals that ask a scheduler to end: counted, and seen by who waits."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """Counts signals while it is entered; one that is ignored stays so.

    Attributes:
        count: signals so far.
        last: the number of the last one, 0 for none.
        handle: becomes readable with each.
    """

    def __init__(self) -> None:
        self.count, self.last = 0, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self.handle, self._theirs = os.pipe()
        os.set_blocking(self._theirs, False)
        os.set_blocking(self.handle, False)
        for name in NAMES:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.handle)
        os.close(self._theirs)

    def seen(self) -> None:
        """Take back that the handle is readable."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.handle, 64):
                pass

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count, self.last = self.count + 1, number
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._theirs, b"!")
