"""`merged`: runs that went on together as one line, with the range that they span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Merged(NamedTuple):
    """The mean of several lines, on a grid of equal steps.

    Attributes:
        x: middle of each step, float64, [steps].
        mean: over the lines that have a value there, each line counted once; NaN if none has.
        low: least value of any of them, float64, [steps].
        high: greatest value of any of them.
    """

    x: Any
    mean: Any
    low: Any
    high: Any


def merged(lines: Sequence[tuple[Any, Any]], steps: int) -> Merged:
    """Return one line for several.

    Where a line was read more slowly than the grid goes, it is taken as straight between its
    readings; where it says that there is no value, and outside of its own time, it counts for
    nothing.

    Args:
        lines: (x, y) of each, float64, x rising; at least one.
        steps: of the grid, at least 1; fewer are taken if no line has so many values.
    """
    import numpy as np

    filled = [(x, y) for x, y in lines if len(x)]
    if not filled:
        empty = np.empty(0)
        return Merged(empty, empty, empty, empty)
    first = min(float(x[0]) for x, _ in filled)
    last = max(float(x[-1]) for x, _ in filled)
    steps = max(1, min(steps, max(len(x) for x, _ in filled)))
    width = (last - first) / steps or 1.0
    middles = first + (np.arange(steps) + 0.5) * width
    parts = [_on_grid(x, y, first, width, middles) for x, y in filled]
    means, lows, highs = (np.array(part) for part in zip(*parts, strict=True))
    there = ~np.isnan(means)
    count = there.sum(axis=0)
    total = np.where(there, means, 0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    none = count == 0
    low = np.where(none, np.nan, np.where(there, lows, np.inf).min(axis=0))
    high = np.where(none, np.nan, np.where(there, highs, -np.inf).max(axis=0))
    return Merged(middles, mean, low, high)


def _on_grid(x: Any, y: Any, first: float, width: float, middles: Any) -> tuple[Any, Any, Any]:
    """Return mean, least and greatest of a line in each step."""
    import numpy as np

    edges = first + width * np.arange(len(middles))
    starts = np.searchsorted(x, edges)
    read = np.diff(starts, append=len(x))
    count, values = read, y
    there = np.isfinite(y)
    if not there.all():
        values, starts = y[there], np.searchsorted(x[there], edges)
        count = np.diff(starts, append=len(values))
    mean, low, high = np.full((3, len(middles)), [[np.nan], [np.inf], [-np.inf]])
    filled = count > 0
    if filled.any():
        firsts = starts[filled]
        mean[filled] = np.add.reduceat(values, firsts) / count[filled]
        low[filled] = np.minimum.reduceat(values, firsts)
        high[filled] = np.maximum.reduceat(values, firsts)
    unread = (read == 0) & (middles > x[0]) & (middles < x[-1])
    if unread.any() and len(values):
        between = np.interp(middles[unread], x, y)  # NaN beside a reading without a value
        mean[unread] = low[unread] = high[unread] = between
    return mean, low, high
