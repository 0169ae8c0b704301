"""Intervals of sums whose terms share their errors.

All stages run on one GPU and one host, and one law predicts their kernels: if the prediction of one
stage is too high because this GPU is faster than others of its kind, so are those of the other
stages. How far errors correlate is not known, so the sum has two intervals:

    correlated   all errors are one:  low = Σ lowᵢ, high = Σ highᵢ
    independent  no correlation:      value ∓ sqrt(Σ (valueᵢ - endᵢ)²)

Quantiles of comonotonic quantities add up exactly, so the first interval is the widest that a
common cause can produce; answers show it. The second is the narrowest without errors that cancel.
Runs of one stage share one error, so n runs are n times as wide in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from dippm.estimate.models.targets import Interval


@dataclass(frozen=True, slots=True)
class IntervalTerm:
    """A term of a sum: its value and the ends of its interval."""

    value: float
    low: float
    high: float


def correlated_sum(parts: Sequence[IntervalTerm], coverage: float) -> Interval:
    """Return the interval of the sum for fully correlated errors."""
    return Interval(sum(part.low for part in parts), sum(part.high for part in parts), coverage)


def independent_sum(parts: Sequence[IntervalTerm], coverage: float) -> Interval:
    """Return the interval of the sum for independent errors."""
    value = sum(part.value for part in parts)
    below = hypot(*(part.value - part.low for part in parts))
    above = hypot(*(part.high - part.value for part in parts))
    return Interval(value - below, value + above, coverage)
