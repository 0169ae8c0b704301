"""Input of the page: its types, limits on concurrent callbacks, and refusal of wrong requests.

Every callback is `checked`: its arguments have to match its annotations, so that a wrong request is
found before the callback starts, and is the client's error (400). A failure in a callback is a
server error (500), which the terminal reports once, in one line.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from dash.exceptions import InvalidResourceError
from flask import Flask, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, validate_call
from werkzeug.exceptions import HTTPException, TooManyRequests

from dippm.base.printable import printable
from dippm.show.ui.exploration import (
    LARGEST_BYTES,
    MAX_CHARTS,
    MAX_COLUMNS,
    MAX_NAMES,
    MAX_TEXT,
    Axis,
    Grouping,
)
from dippm.show.ui.lines import STRONGEST, Alignment

MAX_NAME = 4096
RUNNING = 4
"""Largest number of concurrent callbacks that draw or write files; others run meanwhile."""
MAX_WAITING = 20
WAIT_S = 30.0
MAX_MESSAGE = 300

Name = Annotated[str, Field(max_length=MAX_NAME)]
Names = Annotated[list[Name], Field(max_length=MAX_NAMES)]
Words = Annotated[str, Field(max_length=MAX_TEXT)]
Streams = Annotated[list[Words], Field(max_length=MAX_CHARTS)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Answer = TypeVar("Answer")


class _BrowserInput(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChartSettings(_BrowserInput):
    """Settings that all charts share.

    Attributes:
        seen: visible range of the x axis of all charts; None for all of it.
    """

    smoothing: Annotated[int, Field(ge=0, le=STRONGEST)] = 0
    alignment: Alignment = "run"
    axis: Axis = "time"
    grouping: Grouping = "single"
    show: Names = []
    selected: Names = []
    hidden: Names = []
    seen: tuple[Number, Number] | None = None


class Filters(_BrowserInput):
    """Filters, order and grouping of the table of runs.

    Attributes:
        opened: keys of open groups.
        first: number of the first visible row.
    """

    search: Words = ""
    status: Words = ""
    condition: Words = ""
    experiments: Names = []
    workloads: Annotated[list[tuple[Name, Name]], Field(max_length=MAX_NAMES)] = []
    columns: Annotated[list[Words], Field(max_length=MAX_COLUMNS)] = []
    sort: Words = ""
    by: Words = ""
    opened: Names = []
    first: Annotated[int, Field(ge=0, le=10**9)] = 0


class Zoom(_BrowserInput):
    """View of one chart: visible range of its y axis (None for all), and its scale."""

    y: tuple[Number, Number] | None = None
    log: bool = False


class RunTicks(_BrowserInput):
    """Runs to be ticked: all that pass the filters, or the newest of them."""

    all: bool = False
    newest: Annotated[int, Field(ge=0, le=1000)] = 0
    at: Number = 0


class UploadedFile(_BrowserInput):
    """A file that a visitor uploads."""

    name: Name
    text: Annotated[str, Field(max_length=LARGEST_BYTES)]
    at: Number = 0


class ChartDownload(_BrowserInput):
    """A request for a chart as a file."""

    stream: Words
    kind: Literal["pdf", "csv", "json"]
    at: Number = 0


class OpenView(_BrowserInput):
    """The open view, and its run."""

    name: Literal["runs", "charts", "compare", "run"] = "runs"
    run: Words = ""


class FileDownload(_BrowserInput):
    """A request for an artifact of a run."""

    run: Words
    name: Name
    at: Number = 0


class ChartId(_BrowserInput):
    """The chart that a component of the page belongs to."""

    type: Name
    stream: Name


def checked(callback: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a callback that validates its arguments against its annotations."""
    return validate_call(callback)


_present = threading.BoundedSemaphore(RUNNING + MAX_WAITING)
_running = threading.BoundedSemaphore(RUNNING)


def in_turn(callback: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a callback with limited concurrency, so that quick ones never wait for it.

    Raises:
        TooManyRequests: if too many are waiting, or one waits for too long.
    """

    @functools.wraps(callback)
    def answer(*arguments: Any, **given: Any) -> Answer:
        if not _present.acquire(blocking=False):
            raise TooManyRequests("the page is busy; try again", retry_after=1)
        try:
            if not _running.acquire(timeout=WAIT_S):
                raise TooManyRequests("the page is busy; try again", retry_after=5)
            try:
                return callback(*arguments, **given)
            finally:
                _running.release()
        finally:
            _present.release()

    return answer


def answer_errors(server: Flask) -> None:
    """Register error handlers: a status and a line of text, never a traceback."""
    said: set[str] = set()

    @server.errorhandler(InvalidResourceError)
    def _nowhere(_: InvalidResourceError) -> Response:
        return _line("nothing is here", 404)

    @server.errorhandler(Exception)
    def _refuse(error: Exception) -> Response:
        if isinstance(error, HTTPException):
            if error.response is not None or (error.code or 500) < 400:
                return error.get_response()  # type: ignore[return-value]
            return _line(error.description or error.name, error.code or 500, error.get_headers())
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"]))
            return _line(f"the request is malformed: {place}: {first['msg']}", 400)
        if not _is_ours(error):
            return _line(f"the request is malformed: {type(error).__name__}", 400)
        message = _short(f"the page could not answer: {type(error).__name__}: {error}")
        if message not in said and len(said) < 100:
            said.add(message)
            sys.stderr.write(f" ! {message} ({_place(error)})\n")
        return _line("the page could not answer; its terminal says why", 500)


def _is_ours(error: BaseException) -> bool:
    """Return whether an error arose in the page's code, not in parsing its input."""
    return any(module.startswith("dippm.") for module in _modules(error) if module not in READING)


READING = {__name__, "dippm.show.ui.authentication"}


def _modules(error: BaseException) -> list[str]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    return found


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}" if trace else ""


def _line(text: str, status: int, headers: Any = ()) -> Response:
    kept = [(name, value) for name, value in headers if name.casefold() != "content-type"]
    return Response(f"{_short(text)}\n", status, kept, mimetype="text/plain")


def _short(text: str) -> str:
    text = printable(text[: 2 * MAX_MESSAGE])
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
