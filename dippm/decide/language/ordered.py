"""Times over batch and tokens that keep what physics orders, whatever a network has learned.

A longer sequence never takes less time, a larger batch neither; and a batch takes no longer than
its halves one after the other, so the throughput never falls. The law is asked at powers of two
from 1 and LEAST_TOKENS on, each answer is held within what the smaller neighbours leave; between
them the logarithm is a straight line, whose slope over the batch therefore lies between 0 and 1.
Since only smaller points bound a point, the same question has the same answer in any company.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, log, log2

LEAST_TOKENS = 64
"""Shorter sequences take the time of this many tokens."""


class OrderedSurface:
    """A quantity over (batch, tokens), ordered as the module says.

    Args:
        raw: (batch, tokens) → value above 0, asked at powers of two only.
    """

    def __init__(self, raw: Callable[[int, int], float]) -> None:
        self._raw = raw
        self._known: dict[tuple[int, int], float] = {}

    def at(self, batch: int, tokens: int) -> float:
        """Return the value for a batch of sequences of some tokens."""
        x, y = log2(batch), log2(max(tokens, LEAST_TOKENS) / LEAST_TOKENS)
        low, below = int(x), int(y)
        rows = [self._along(low, below, y)]
        if x > low:
            rows.append(self._along(low + 1, below, y))
        return exp(_between(rows, x - low))

    def _along(self, power: int, below: int, y: float) -> float:
        values = [log(self._point(power, below))]
        if ceil(y) > below:
            values.append(log(self._point(power, below + 1)))
        return _between(values, y - below)

    def _point(self, power: int, step: int) -> float:
        """Return the ordered value at batch 2^power and LEAST_TOKENS · 2^step tokens."""
        key = power, step
        if key not in self._known:
            value = self._raw(1 << power, LEAST_TOKENS << step)
            least = self._point(power, step - 1) if step else 0.0
            if power:
                half = self._point(power - 1, step)
                value = min(max(value, half), 2.0 * half)
            self._known[key] = max(value, least)
        return self._known[key]


def _between(values: list[float], share: float) -> float:
    if len(values) == 1:
        return values[0]
    return (1.0 - share) * values[0] + share * values[1]
