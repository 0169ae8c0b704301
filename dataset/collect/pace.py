"""`Pace`: how much time there is, for one point and for the campaign."""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from statistics import quantiles

from dataset.collect.errors import Stop

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FINISH_S = 5.0
"""After Ctrl-C the point in flight may finish for so long."""
OVERRUN_S = 2.0
"""A point that was expected to fit the budget may overrun it by so much, then it is dropped."""


def seconds(text: str) -> float:
    """Read "90s", "8m", "2h", "1d" or a number of seconds.

    Raises:
        ValueError: if it is none of them.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is no duration such as 90s, 8m or 2h")
    return float(match[1]) * UNITS[match[2] or "s"]


class Pace:
    """Counts down for points and campaign.

    Args:
        timeout_s: for building a model and measuring one point.
        budget_s: for the campaign from now on; None for no limit.
        limit: points at most; None for no limit.
        clock: seconds that only grow.

    Attributes:
        limit_s: of the point in flight.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        budget_s: float | None = None,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout_s, self._clock = timeout_s, clock
        self.limit_s = timeout_s
        self._end = None if budget_s is None else clock() + budget_s
        self._left = limit
        self._point_end = clock()
        self._recent: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=50))
        self._signal: int | None = None
        self._dropped_at = 0.0

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked to stop."""
        return self._signal is not None

    @property
    def spent(self) -> bool:
        """Whether even what is in flight has to end now."""
        limited = self._left is not None and self._left <= 0
        return limited or self.campaign_remaining() <= 0

    def begin(self, kind: Hashable, guess_s: float, patience: float = 1.0) -> None:
        """Begin a point that is like others of its kind and may take `patience` times the limit.

        Raises:
            Stop: if it must not start: somebody interrupted, or it would overrun the budget.
        """
        self.check()
        now = self._clock()
        if self._end is not None and now + self.expected_s(kind, guess_s) > self._end:
            raise Stop("budget")
        self.limit_s = patience * self.timeout_s
        self._point_end = now + self.limit_s

    def check(self) -> None:
        """Raise `Stop` if nothing may start any more."""
        if self._signal is not None:
            raise Stop(signal.Signals(self._signal).name)
        if self._left is not None and self._left <= 0:
            raise Stop("limit")
        if self._end is not None and self._clock() >= self._end:
            raise Stop("budget")

    def remaining(self) -> float:
        """Return the seconds that the point in flight still has."""
        now = self._clock()
        left = self._point_end - now
        return min(left, self._campaign_left(now))

    def starting(self, most_s: float) -> Callable[[], float]:
        """Return what counts down for a worker that may take so long to start."""
        end = self._clock() + most_s
        return lambda: min(end - self._clock(), self.campaign_remaining())

    def campaign_remaining(self) -> float:
        """Return the seconds until everything has to end."""
        return self._campaign_left(self._clock())

    def budget_left(self) -> float | None:
        """Return the seconds that are left of the budget; None if there is none."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def finish(self, kind: Hashable, seconds: float) -> None:
        """Learn how long a point took."""
        self._recent[kind].append(seconds)

    def count(self) -> None:
        """Count a row against the limit."""
        if self._left is not None:
            self._left -= 1

    def interrupt(self, number: int) -> None:
        """Let the point in flight finish for a moment, and start no other; twice: drop it."""
        again = self._signal is not None
        self._signal = number
        self._dropped_at = self._clock() + (0.0 if again else FINISH_S)

    def expected_s(self, kind: Hashable, guess_s: float) -> float:
        """Return what three of four recent points of the kind stayed below, or the guess."""
        recent = self._recent[kind]
        if len(recent) < 4:
            return max([guess_s, *recent])
        return quantiles(recent, n=4)[2]

    def _campaign_left(self, now: float) -> float:
        left = float("inf") if self._end is None else self._end + OVERRUN_S - now
        if self._signal is not None:
            left = min(left, self._dropped_at - now)
        return left
