"""A time limit for Python work in this process, where nothing can be killed; where it was then.

Module objects are exported in the caller's process, since only there their classes exist. The limit
raises an error inside the working thread, which Python code meets at its next step; a single long
call into C is not interrupted.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from dippm.model.frontends.worker_errors import no_process

Frames = Iterable[tuple[FrameType, int]]
"""Calls with the line that each is at, the innermost last."""

REPEAT_S = 1.0
"""How often the error is raised again, should the work have swallowed it."""


class OutOfTimeError(BaseException):
    """Not an `Exception`, so that the work does not take it for one of its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Run the block, in this thread, for at most so long.

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
        raise no_process(error) from error
    try:
        try:
            yield
        finally:
            # What was raised and not met yet is met here. It is never taken back: an interpreter
            # before 3.13 then looks for it at every step, and hangs under a profiler.
            while True:
                try:
                    with lock:
                        over.set()
                    time.sleep(0)
                    break
                except OutOfTimeError:
                    continue
    except OutOfTimeError as error:
        raise TimeoutError(f"longer than {seconds:g} s") from error  # it says where it was met
    except Exception as error:  # what the work made of the interruption
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
    """Yield the calls that an error came through, then those of what led to it."""
    while error is not None:
        yield from traceback.walk_tb(error.__traceback__)
        error = error.__cause__ or error.__context__


def innermost_part(name_of: Callable[[object], str | None], frames: Frames) -> str:
    """Return the last part of a model in some calls, with its class and line; "" if there is none.

    Args:
        name_of: tells the parts of a model from other objects, and names them.
        frames: calls of this thread, or those that an error came through.
    """
    found = ""
    for frame, line in frames:
        part = frame.f_locals.get("self")
        name = name_of(part)
        if name is not None and not frame.f_code.co_name.endswith("_call_impl"):
            file = os.path.basename(frame.f_code.co_filename)
            found = f", in {name} ({type(part).__name__}), line {line} of {file}"
    return found
