"""A time limit for Python work in this process, and the part of the model that was reached.

Module objects are exported in the caller's process, which alone has their classes and must not be
killed. The limit raises an error inside the working thread, at the next step of its Python code; a
single long call into C is not interrupted.
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

from dippm.model.frontends.worker_errors import no_process_error

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
        name_of: returns the name of an object that is a part of the model, else None.
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
