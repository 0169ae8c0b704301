"""`merged`: runs of one workload as one line, with their range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class MergedLine(NamedTuple):
    """Mean and range of several lines on a grid of equal steps.

    Attributes:
        x: middle of each step, float64, [steps].
        mean: mean over the lines with a value in the step, each counted once; NaN if none has one.
        low: smallest value of any line, float64, [steps].
        high: largest value of any line.
    """

    x: Any
    mean: Any
    low: Any
    high: Any


def merged(lines: Sequence[tuple[Any, Any]], steps: int) -> MergedLine:
    """Merge several lines into one.

    A line is interpolated linearly where its readings are further apart than the grid; it does not
    count where it has no value, or outside its own time.

    Args:
        lines: (x, y) of at least one line, float64, x increasing.
        steps: number of steps of the grid, at least 1; fewer if no line has so many values.
    """
    import numpy as np

    filled = [(x, y) for x, y in lines if len(x)]
    if not filled:
        empty = np.empty(0)
        return MergedLine(empty, empty, empty, empty)
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
    return MergedLine(middles, mean, low, high)


def _on_grid(x: Any, y: Any, first: float, width: float, middles: Any) -> tuple[Any, Any, Any]:
    """Return mean, minimum and maximum of a line in each step."""
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
        between = np.interp(middles[unread], x, y)  # NaN next to a reading without a value
        mean[unread] = low[unread] = high[unread] = between
    return mean, low, high
