"""`Pace`: the time limits of a point and of the campaign."""

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
"""Time for the point in flight to finish after Ctrl-C."""
OVERRUN_S = 2.0
"""Time by which a point may overrun the budget before it is dropped."""


def seconds(text: str) -> float:
    """Return the seconds of "90s", "8m", "2h", "1d" or a number.

    Raises:
        ValueError: if it has another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is no duration such as 90s, 8m or 2h")
    return float(match[1]) * UNITS[match[2] or "s"]


class Pace:
    """Counts down for points and the campaign.

    Args:
        timeout_s: time limit for building a model, and for measuring a point.
        budget_s: time limit of the campaign from now on; None for none.
        limit: maximum number of points; None for none.
        clock: monotonic clock in seconds.

    Attributes:
        limit_s: time limit of the point in flight.
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
        """Whether an interrupt was received."""
        return self._signal is not None

    @property
    def spent(self) -> bool:
        """Whether even the point in flight has to end now."""
        limited = self._left is not None and self._left <= 0
        return limited or self.campaign_remaining() <= 0

    def begin(self, kind: Hashable, guess_s: float, patience: float = 1.0) -> None:
        """Begin a point of a kind, with `patience` times the time limit.

        Raises:
            Stop: if it must not start, after an interrupt or because it would overrun the budget.
        """
        self.check()
        now = self._clock()
        if self._end is not None and now + self.expected_s(kind, guess_s) > self._end:
            raise Stop("budget")
        self.limit_s = patience * self.timeout_s
        self._point_end = now + self.limit_s

    def check(self) -> None:
        """Raise `Stop` if no further point may start."""
        if self._signal is not None:
            raise Stop(signal.Signals(self._signal).name)
        if self._left is not None and self._left <= 0:
            raise Stop("limit")
        if self._end is not None and self._clock() >= self._end:
            raise Stop("budget")

    def remaining(self) -> float:
        """Return the remaining seconds of the point in flight."""
        now = self._clock()
        left = self._point_end - now
        return min(left, self._campaign_left(now))

    def starting(self, most_s: float) -> Callable[[], float]:
        """Return a countdown for the start of a worker, of at most this many seconds."""
        end = self._clock() + most_s
        return lambda: min(end - self._clock(), self.campaign_remaining())

    def campaign_remaining(self) -> float:
        """Return the seconds until the campaign has to end."""
        return self._campaign_left(self._clock())

    def budget_left(self) -> float | None:
        """Return the remaining seconds of the budget; None if there is none."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def finish(self, kind: Hashable, seconds: float) -> None:
        """Record the duration of a point."""
        self._recent[kind].append(seconds)

    def count(self) -> None:
        """Count a row against the limit."""
        if self._left is not None:
            self._left -= 1

    def interrupt(self, number: int) -> None:
        """Start no further point, and let the one in flight finish; drop it if called again."""
        again = self._signal is not None
        self._signal = number
        self._dropped_at = self._clock() + (0.0 if again else FINISH_S)

    def expected_s(self, kind: Hashable, guess_s: float) -> float:
        """Return the third quartile of recent durations of the kind, or the guess without any."""
        recent = self._recent[kind]
        if len(recent) < 4:
            return max([guess_s, *recent])
        return quantiles(recent, n=4)[2]

    def _campaign_left(self, now: float) -> float:
        left = float("inf") if self._end is None else self._end + OVERRUN_S - now
        if self._signal is not None:
            left = min(left, self._dropped_at - now)
        return left
