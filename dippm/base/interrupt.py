"""Ctrl-C at any moment of a command: an orderly or an immediate end, but no traceback.

Python turns Ctrl-C into an exception from its start on, also during imports, when no command can
catch it yet. So Ctrl-C ends the process at once during start-up and after the command, when there
is nothing to clean up, and raises an exception in between.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def starts_command() -> bool:
    """Return whether this process is the command `dippm`, or `python -m dippm`."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # while Python searches for the module
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["dippm"]
    return name.replace("\\", "/").rpartition("/")[2] in ("dippm", "dippm.exe")


def end_at_once() -> None:
    """Let Ctrl-C end this process silently, unless it is already ignored or handled."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` within the block, after `end_at_once`.

    Where it cannot propagate, such as in a finaliser, Python would print it and continue; here it
    ends the process.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    show = sys.unraisablehook

    def end_or_show(problem: Any) -> None:
        if issubclass(problem.exc_type, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        show(problem)

    sys.unraisablehook = end_or_show
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.unraisablehook = show


if starts_command():
    end_at_once()
