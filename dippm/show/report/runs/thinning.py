"""`extremes`: thins a long line without losing a peak."""

from __future__ import annotations

from typing import Any


def extremes(values: Any, most: int) -> Any:
    """Return the indices of a line to draw: its ends, and minimum and maximum of each bin.

    A bin without a value keeps its first index, so that a gap stays a gap.

    Args:
        values: float64, [n]; NaN without a value.
        most: largest number of indices, at least 4.

    Returns:
        Increasing unique indices, int64; all n if there are no more than `most`.

    Raises:
        ValueError: if `most` is below 4.
    """
    import numpy as np

    if most < 4:
        raise ValueError(f"a line needs 4 points to keep its extremes and its ends, not {most}")
    count = len(values)
    if count <= most:
        return np.arange(count)
    size = -(-count // ((most - 2) // 2))
    whole = count // size * size
    low = high = values
    if np.isnan(values).any():
        missing = np.isnan(values)
        low, high = np.where(missing, np.inf, values), np.where(missing, -np.inf, values)
    first = np.arange(0, whole, size)
    least = first + low[:whole].reshape(-1, size).argmin(axis=1)
    greatest = first + high[:whole].reshape(-1, size).argmax(axis=1)
    rest = [whole + low[whole:].argmin(), whole + high[whole:].argmax()] if whole < count else []
    return np.unique(np.concatenate(([0, count - 1], least, greatest, rest)).astype(np.int64))
