"""Words for how a process ended, and which errors mean that memory ran out."""

from __future__ import annotations

import re
import signal

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory"
    r"|unable to allocate|ALLOC_FAILED|bad_alloc|MemoryError|failed to map segment"
    r"|memory allocation",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out or its limit was met."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or tells_out_of_memory(str(error))


def tells_out_of_memory(text: str) -> bool:
    """Return whether a library's words say that memory ran out."""
    return OUT_OF_MEMORY.search(text) is not None


def describe_exit(code: int) -> str:
    """Return how a process ended, for instance "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal_name(-code)}{hint}"


def signal_name(number: int) -> str:
    """Return the name of a signal, also of one that Python does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
