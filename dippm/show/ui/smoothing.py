"""`smoothed`: a line as its exponential moving average."""

from __future__ import annotations

from typing import Any

STRONGEST = 99
EXACT = 2.0**-54
"""Less than this from 1 is 1."""


def smoothed(values: Any, percent: int) -> Any:
    """Return the exponential moving average, without the pull of its beginning towards zero.

    Each value weighs `percent` / 100 of the one after it; the sum is divided by that of the weights
    (as TensorBoard does it). What is missing stays missing and is stepped over.

    Args:
        values: float64, [n]; NaN where there is none.
        percent: 0 (as it is) to 99.

    Raises:
        ValueError: if `percent` is out of range.
    """
    import numpy as np

    if not 0 <= percent <= STRONGEST:
        raise ValueError(f"smoothing goes from 0 to {STRONGEST} %, not {percent}")
    if percent == 0 or not len(values):
        return values
    from scipy.signal import lfilter

    weight = percent / 100
    there = np.isfinite(values)
    given = values if there.all() else values[there]
    averages = lfilter([1 - weight], [1, -weight], given)
    # The weights of so many sum to less than the 1 that the filter takes for granted.
    few = min(len(given), int(np.log(EXACT) / np.log(weight)) + 1)
    averages[:few] /= -np.expm1(np.arange(1, few + 1) * np.log(weight))
    if len(given) == len(values):
        return averages
    found = np.full(len(values), np.nan)
    found[there] = averages
    return found
