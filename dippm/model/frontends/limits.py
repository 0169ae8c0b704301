"""Limits of a conversion, and a time limit for Python code in this process.

Module objects are exported in the caller's process, which alone has their classes and must not be
killed. There the time limit raises an error inside the working thread, at the next step of its
Python code, and the part of the model that was reached is named; a single long call into C is not
interrupted.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from dippm.errors import ConditionsError
from dippm.model.frontends.worker_errors import no_process_error

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_MEMORY_LIMIT_MB = 4096
LEAST_MEMORY_MB = 64
OPERATORS = 100_000
"""Number of operators up to which the time limit is not extended."""
MOST_TIMES = 10.0
"""Maximum factor on the time limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one conversion.

    Attributes:
        timeout_s: wall time from request to answer, including the start of the process, for a graph
            of up to 100,000 operators; larger ones get more, see `time_factor`. Infinite for none.
        memory_limit_mb: limit on the private memory of the process (`RLIMIT_DATA`).

    Raises:
        ConditionsError: if a value is not a valid limit.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB

    def __post_init__(self) -> None:
        if not _is_number(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConditionsError(
                f"the time limit is {self.timeout_s!r}",
                "Give seconds above 0, as timeout_s=...; timeout_s=inf is no limit.",
            )
        if not _is_number(self.memory_limit_mb, int) or self.memory_limit_mb < LEAST_MEMORY_MB:
            raise ConditionsError(
                f"the memory limit is {self.memory_limit_mb!r} MB",
                f"Give a whole number, as memory_limit_mb=..., from {LEAST_MEMORY_MB}"
                f" on; most models need less than {DEFAULT_MEMORY_LIMIT_MB}.",
            )


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def time_factor(operators: int) -> float:
    """Return the factor on the time limit for a graph, in proportion to its size, from 1 to 10."""
    return min(max(operators / OPERATORS, 1.0), MOST_TIMES)


# Time limit for Python code in this process.


Frames = Iterable[tuple[FrameType, int]]
"""Stack frames with the current line of each, innermost last."""

REPEAT_S = 1.0
"""Interval at which the error is raised again, in case the work has swallowed it."""


class OutOfTimeError(BaseException):
    """Signals the end of the time limit; not an `Exception`, so that the work does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Run the block, in this thread, for at most this time.

    Raises:
        TimeoutError: if the block took longer.
        ConversionError: if no thread can be started.
    """
    thread = threading.get_ident()
    over = threading.Event()
    lock = threading.Lock()

    def wait() -> None:
        pause = seconds
        while not over.wait(pause):
            with lock:
                if not over.is_set():
                    _raise_in(thread)
            pause = REPEAT_S

    watch = threading.Thread(target=wait, daemon=True, name="dippm-deadline")
    end = time.monotonic() + seconds
    try:
        watch.start()
    except RuntimeError as error:
        raise no_process_error(error) from error
    try:
        try:
            yield
        finally:
            # A pending error surfaces here. It is never withdrawn: an interpreter before 3.13
            # would then check for it at every step, and hang under a profiler.
            while True:
                try:
                    with lock:
                        over.set()
                    time.sleep(0)
                    break
                except OutOfTimeError:
                    continue
    except OutOfTimeError as error:
        raise TimeoutError(f"longer than {seconds:g} s") from error  # its traceback says where
    except Exception as error:  # the work's own error about the interruption
        if time.monotonic() >= end and _came_from_time(error):
            raise TimeoutError(f"longer than {seconds:g} s") from error
        raise


def _raise_in(thread: int) -> None:
    error = ctypes.py_object(OutOfTimeError)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


def _came_from_time(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OutOfTimeError):
            return True
        error = error.__cause__ or error.__context__
    return False


def frames_of(error: BaseException | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of an error's traceback, then those of its causes."""
    while error is not None:
        yield from traceback.walk_tb(error.__traceback__)
        error = error.__cause__ or error.__context__


def innermost_part(name_of: Callable[[object], str | None], frames: Frames) -> str:
    """Return the innermost part of a model in stack frames, with class and line; "" if none.

    Args:
        name_of: function that returns the name of an object that is a part of the model, else None.
        frames: frames of this thread, or of an error's traceback.
    """
    found = ""
    for frame, line in frames:
        part = frame.f_locals.get("self")
        name = name_of(part)
        if name is not None and not frame.f_code.co_name.endswith("_call_impl"):
            file = os.path.basename(frame.f_code.co_filename)
            found = f", in {name} ({type(part).__name__}), line {line} of {file}"
    return found
