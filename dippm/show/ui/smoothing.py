"""`smoothed`: the exponential moving average of a line."""

from __future__ import annotations

from typing import Any

STRONGEST = 99
EXACT = 2.0**-54
"""Distance from 1 below which a weight counts as 1."""


def smoothed(values: Any, percent: int) -> Any:
    """Return the exponential moving average with bias correction.

    Each value has `percent` / 100 of the weight of the next one; the sum is divided by that of the
    weights (as in TensorBoard). Missing values stay missing and are skipped.

    Args:
        values: float64, [n]; NaN without a value.
        percent: weight in percent, 0 (unchanged) to 99.

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
    """Return the running weighted sums, where each value has `weight` times the weight of the next.

    The array is overwritten. Sums over 1, 2, 4, … values are built by doubling, until older values
    have no weight: as fast as a recursive filter, without SciPy's half second of import.
    """
    import numpy as np

    before = np.empty_like(values)
    reach, weighs = 1, weight
    while reach < len(values) and weighs > EXACT:
        np.multiply(values[:-reach], weighs, out=before[reach:])
        values[reach:] += before[reach:]
        reach, weighs = 2 * reach, weighs * weighs
    return values
