"""Orderly end on signals: workers and their folders are removed, the exit code names the signal."""

from __future__ import annotations

import signal
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")  # Ctrl-C is an exception already


def end_in_order() -> None:
    """Turn termination signals into an exit with code 128 + n.

    A second one ends the process at once. An ignored signal stays ignored, as under nohup.
    """
    for name in NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
