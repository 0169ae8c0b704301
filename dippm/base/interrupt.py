"""Ctrl-C at any moment of a command: an orderly end, or one at once, but no traceback.

Python makes Ctrl-C an exception from its first moment on, also while modules are imported and no
command is there yet to catch it. So the command line lets it end the process at once while it
starts and when it is done, when nothing is there that had to be put in order, and has it raised in
between.
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
    if name == "-m":  # while Python looks for the module
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["dippm"]
    return name.replace("\\", "/").rpartition("/")[2] in ("dippm", "dippm.exe")


def end_at_once() -> None:
    """Let Ctrl-C end this process without a word; where it is ignored, or handled, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def raised() -> Iterator[None]:
    """Within the block, Ctrl-C is `KeyboardInterrupt`, after `end_at_once`.

    Where it cannot be raised, as in a finaliser, Python would print it and go on: it ends the
    process there.
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
