"""Which status an exception or an exit of a worker is."""

from __future__ import annotations

import re
import signal

from dippm.measure.columns import Status

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory"
    r"|ALLOC_FAILED|bad_alloc",
    re.IGNORECASE,
)
DEVICE_FAILED = re.compile(
    r"CUDA error|CUDA driver error|CU(DNN|BLAS)_STATUS_(EXECUTION|INTERNAL)"
    r"|no CUDA-capable device|device lost|GPU is lost|fallen off the bus",
    re.IGNORECASE,
)


def classify(error: BaseException) -> tuple[Status, bool]:
    """Return the status, and whether the process is of no further use.

    A CUDA error other than memory sticks to the context: every later call would fail with it.
    """
    text = f"{type(error).__name__}: {error}"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or OUT_OF_MEMORY.search(text):
        return "oom", False
    if "AcceleratorError" in names or DEVICE_FAILED.search(text):
        return "crash", True
    return "error", False


def first_line(text: str, most: int = 300) -> str:
    """Return the first line that says something, shortened."""
    lines = (line.strip() for line in text.splitlines())
    line = next(filter(None, lines), "no message")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def describe_exit(code: int) -> str:
    """Return how a process ended, for instance "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
