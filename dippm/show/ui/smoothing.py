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
    weight = percent / 100
    there = np.isfinite(values)
    given = values if there.all() else values[there]
    averages = _sums(given * (1 - weight), weight)
    # The weights of the first ones sum to less than 1.
    few = min(len(given), int(np.log(EXACT) / np.log(weight)) + 1)
    averages[:few] /= -np.expm1(np.arange(1, few + 1) * np.log(weight))
    if len(given) == len(values):
        return averages
    found = np.full(len(values), np.nan)
    found[there] = averages
    return found


def _sums(values: Any, weight: float) -> Any:
    """Return each value with all before it, each of which weighs `weight` of the one after it.

    The array is used up. Sums of 1, 2, 4, … values are made of each other, until what is further
    away weighs nothing: as fast as a recursive filter, and SciPy's takes half a second to import.
    """
    import numpy as np

    before = np.empty_like(values)
    reach, weighs = 1, weight
    while reach < len(values) and weighs > EXACT:
        np.multiply(values[:-reach], weighs, out=before[reach:])
        values[reach:] += before[reach:]
        reach, weighs = 2 * reach, weighs * weighs
    return values
