"""Intervals of sums whose parts share their errors.

All stages run on one GPU and one host, and one law says what their kernels take: if the prediction
of one stage is too high because this GPU is faster than its like, those of the others are too. How
much of the errors is shared is not known, so the sum has two intervals:

    together  all errors are one:      low = Σ lowᵢ, high = Σ highᵢ
    apart     none has to do with any: value ∓ sqrt(Σ (valueᵢ - endᵢ)²)

Quantiles of quantities that rise and fall together add up exactly, so the first is the widest that
errors of one cause can make it; it is what answers show. The second is the narrowest without errors
that cancel. Repetitions of a stage have one error, so n runs are n times as wide in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from dippm.estimate.models.targets import Interval


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a sum: its value and the ends of its interval."""

    value: float
    low: float
    high: float


def together(parts: Sequence[Part], coverage: float) -> Interval:
    """Return the interval of the sum if all errors are one."""
    return Interval(sum(part.low for part in parts), sum(part.high for part in parts), coverage)


def apart(parts: Sequence[Part], coverage: float) -> Interval:
    """Return the interval of the sum if no error has to do with another."""
    value = sum(part.value for part in parts)
    below = hypot(*(part.value - part.low for part in parts))
    above = hypot(*(part.high - part.value for part in parts))
    return Interval(value - below, value + above, coverage)
