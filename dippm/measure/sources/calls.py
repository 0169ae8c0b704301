"""Calls of counters that may fail: a reason for each quantity, and a limit on retries."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dippm.errors import SourceDroppedWarning
from dippm.measure.readings import Quantity, Readings

PATIENCE = 5
"""Number of consecutive failures after which a call is not tried again."""


class CounterCall(NamedTuple):
    """A call of a counter interface, and the quantities that it returns, in order."""

    quantities: tuple[Quantity, ...]
    read: Callable[[], tuple[float, ...]]


class Failure(NamedTuple):
    """The reason of a failed call.

    Attributes:
        reason: reason, with a remedy if there is one.
        lasts: whether trying again is pointless.
        whole: whether nothing else of the source can work either.
    """

    reason: str
    lasts: bool = False
    whole: bool = False


class NotHere(Exception):  # noqa: N818 - an answer, not an error
    """A value is not available, now or ever; the text is the reason.

    Attributes:
        lasts: whether trying again is pointless.
    """

    def __init__(self, reason: str, *, lasts: bool = False) -> None:
        super().__init__(reason)
        self.lasts = lasts


def explain_files(error: Exception, call: CounterCall) -> Failure:
    """Return why reading a file of the kernel failed."""
    if isinstance(error, NotHere):
        return Failure(str(error), error.lasts)
    if isinstance(error, FileNotFoundError):
        return Failure(f"{error.filename} does not exist on this system", lasts=True)
    if isinstance(error, PermissionError):
        return Failure(f"{error.filename} may not be read by this user", lasts=True)
    return Failure(f"{type(error).__name__}: {error}")


class Calls:
    """The calls of one source; `read` never raises."""

    def __init__(
        self,
        source: str,
        calls: Iterable[CounterCall],
        explain: Callable[[Exception, CounterCall], Failure] = explain_files,
    ) -> None:
        self._source = source
        self._live = list(calls)
        self._explain = explain
        self._failed_in_a_row: dict[CounterCall, int] = {}
        self._dropped: dict[str, str] = {}

    def read(self) -> Readings:
        """Make every call that has not been given up."""
        time_ns = time.monotonic_ns()
        values: dict[str, float] = {}
        absent: dict[str, str] = {}
        for call in tuple(self._live):
            try:
                answer = call.read()
            except Exception as error:
                absent |= dict.fromkeys(_names(call), self._note(error, call))
                if not self._live:
                    break  # nothing else can work either
            else:
                self._failed_in_a_row.pop(call, None)
                for quantity, value in zip(call.quantities, answer, strict=True):
                    values[quantity.name] = value
        if self._dropped:
            absent |= self._dropped
            values = {name: value for name, value in values.items() if name not in absent}
        return Readings(time_ns, values, absent)

    def drop(self, reason: str) -> None:
        """Give up all remaining calls for this reason."""
        for call in self._live:
            self._dropped |= dict.fromkeys(_names(call), reason)
        self._live = []

    def _note(self, error: Exception, call: CounterCall) -> str:
        failure = self._explain(error, call)
        if isinstance(error, NotHere) and not error.lasts:
            return failure.reason  # a plain answer, which may change
        count = self._failed_in_a_row[call] = self._failed_in_a_row.get(call, 0) + 1
        if failure.whole:
            self.drop(failure.reason)
            self._warn("everything", failure.reason)
        elif failure.lasts or count >= PATIENCE:
            self._live.remove(call)
            self._dropped |= dict.fromkeys(_names(call), failure.reason)
            if not failure.lasts:  # warn of new failures, not of what this machine never had
                self._warn(", ".join(_names(call)), f"failed {count} times: {failure.reason}")
        return failure.reason

    def _warn(self, what: str, reason: str) -> None:
        warnings.warn(f"{self._source}: {what} dropped, {reason}", SourceDroppedWarning, 4)


class CounterSource:
    """What sources share that make `Calls`; a subclass defines name, quantities and calls."""

    _calls: Calls

    def read(self) -> Readings:
        """Make every call that is due."""
        return self._calls.read()

    def close(self) -> None:
        """Give up all calls; files are not kept open."""
        self._calls.drop("the source is closed")


def limit_cost(
    read: Callable[[], tuple[float, ...]], *, share: float = 0.002, least_s: float = 0.0
) -> Callable[[], tuple[float, ...]]:
    """Limit the cost of `read`: between real calls it repeats the last answer.

    Args:
        read: costly call.
        share: largest share of a core: a call of t seconds is not repeated before t / share.
        least_s: least time between calls in seconds.
    """
    due = 0.0
    answer: tuple[float, ...] = ()

    def sparing() -> tuple[float, ...]:
        nonlocal due, answer
        start = time.perf_counter()
        if start >= due:
            answer = read()
            end = time.perf_counter()
            due = start + max(least_s, (end - start) / share)
        return answer

    return sparing


def _names(call: CounterCall) -> tuple[str, ...]:
    return tuple(quantity.name for quantity in call.quantities)
