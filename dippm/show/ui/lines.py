"""Arithmetic on the lines of a chart: alignment of runs in time, smoothing, and merging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

# Alignment: the starts of runs on a common time axis.


Alignment = Literal["run", "workload", "clock"]
AXES: dict[str, str] = {
    "run": "elapsed time of each run (s)",
    "workload": "elapsed time since the first run of the workload began (s)",
    "clock": "time of day (UTC)",
}
STEP = "step"
"""Name of the axis whose x is the step that a run reported with its values."""


class RunStart(NamedTuple):
    """Start of a run.

    Attributes:
        run: UUID of the run.
        workload: experiment and workload; the runs of a workload belong together.
        wall_ns: time of the start in nanoseconds since 1970.
    """

    run: str
    workload: tuple[str, str]
    wall_ns: int


def offsets_s(runs: Sequence[RunStart], alignment: Alignment) -> dict[str, float]:
    """Return the offset in s to add to the elapsed time of each run, by UUID.

    "run" aligns all starts at zero; "workload" aligns the first start of each workload, which keeps
    the distances between its runs; "clock" gives seconds since 1970.
    """
    if alignment == "clock":
        return {run.run: run.wall_ns / 1e9 for run in runs}
    if alignment == "run":
        return {run.run: 0.0 for run in runs}
    first: dict[tuple[str, str], int] = {}
    for run in runs:
        first[run.workload] = min(first.get(run.workload, run.wall_ns), run.wall_ns)
    return {run.run: (run.wall_ns - first[run.workload]) / 1e9 for run in runs}


# Smoothing.


STRONGEST = 99
"""Maximum weight in percent."""
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
    averages = _weighted_sums(given * (1 - weight), weight)
    # Bias correction: the weights of the first n values sum to 1 - weight ** n, which soon is 1.
    few = min(len(given), int(np.log(EXACT) / np.log(weight)) + 1)
    averages[:few] /= -np.expm1(np.arange(1, few + 1) * np.log(weight))
    if len(given) == len(values):
        return averages
    found = np.full(len(values), np.nan)
    found[there] = averages
    return found


def _weighted_sums(values: Any, weight: float) -> Any:
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


# Merging.


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
