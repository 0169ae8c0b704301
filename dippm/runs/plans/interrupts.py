"""Ctrl-C and other signals that ask a scheduler to end, as a count and a readable descriptor."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """Counts signals within its block; ignored signals stay ignored.

    Attributes:
        count: number of signals so far.
        last: number of the last signal, 0 for none.
        handle: descriptor that becomes readable at each signal.
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
        """Empty the descriptor, so that it is not readable any more."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.handle, 64):
                pass

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count, self.last = self.count + 1, number
        with contextlib.suppress(BlockingIOError):  # already readable
            os.write(self._theirs, b"!")
