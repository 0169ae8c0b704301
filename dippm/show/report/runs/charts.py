"""Charts as data, independent of a plotting library; every back-end draws every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

MOST_DRAWN = 2000
"""Largest number of points of a drawn line; csv and json have all points."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        run: label of the run, or of the runs that are averaged.
        name: name of the line; starts with that label.
        x: float64, [n], increasing.
        y: float64, [n]; NaN without a value.
        low: minimum over the averaged runs, [n]; None for one run.
        high: maximum over the averaged runs.
        n: number of averaged runs.
        uuids: uuids of those runs.
    """

    run: str
    name: str
    x: Any
    y: Any
    low: Any = None
    high: Any = None
    n: int = 1
    uuids: tuple[str, ...] = ()

    def thinned(self, most: int = MOST_DRAWN) -> Line:
        """Return the line with minimum and maximum of each bin, so that no peak is lost."""
        if len(self.y) <= most or self.low is not None:
            return self
        rows = extremes(self.y, most)
        return replace(self, x=self.x[rows], y=self.y[rows])


@dataclass(frozen=True, slots=True)
class Level:
    """A constant value with its interval, such as a prediction.

    Attributes:
        run: label of the run, or of the runs that share it.
        name: name of the value.
        value: the value in the unit of the chart.
        low: lower end of the interval; None without one.
        high: upper end of the interval.
        coverage: probability of the interval, 0 to 1.
    """

    run: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None
    coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A named range of the x axis, such as a span.

    Attributes:
        run: label of the run.
        name: name of the span.
        start: start on the x axis.
        end: end on the x axis.
        lane: nesting depth among the spans of its run, from 0.
    """

    run: str
    name: str
    start: float
    end: float
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over elapsed time or epochs.

    Attributes:
        title: title of the chart.
        x_label: label of the x axis, with its unit.
        y_label: label of the y axis, with its unit.
        lines: at least one line.
        levels: horizontal lines.
        stretches: ranges drawn behind the lines.
        unit: unit of y; "" for none.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RunBar:
    """One bar.

    Attributes:
        run: label of the run.
        name: measured quantity; bars of one name are grouped.
        mean: mean value: the height of the bar.
        low: smallest value.
        high: largest value.
        n: number of values.
    """

    run: str
    name: str
    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of means, with the range of the values."""

    title: str
    y_label: str
    bars: tuple[RunBar, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """A matrix.

    Attributes:
        title: title of the chart, with the label of its run.
        run: label of the run.
        labels: labels of rows and columns.
        matrix: values by row.
    """

    title: str
    run: str
    labels: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parallel coordinates of settings, one line each.

    Attributes:
        title: title of the chart.
        axes: names of settings, the target last.
        rows: label of the run, and a number or text per axis; None without a value.
    """

    title: str
    axes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | str | None, ...]], ...]

    def scale(self, axis: int) -> tuple[list[float], list[tuple[float, str]]]:
        """Return the position of each row on an axis (NaN without one), and the ticks.

        Numbers keep their values; texts are numbered in alphabetical order.
        """
        found = [row[axis] for _, row in self.rows]
        if all(value is None or isinstance(value, int | float) for value in found):
            places = [float("nan") if value is None else float(value) for value in found]
            numbers = sorted({place for place in places if place == place})
            ends = [numbers[0], numbers[-1]] if len(numbers) > 1 else numbers
            return places, [(number, f"{number:g}") for number in ends]
        words = sorted({str(value) for value in found if value is not None})
        ticks = [(float(place), word) for place, word in enumerate(words)]
        numbered = {word: place for place, word in ticks}
        return [float("nan") if v is None else numbered[str(v)] for v in found], ticks


Chart = Lines | Bars | Heat | Parallel


@dataclass(frozen=True, slots=True)
class DrawnCharts:
    """Charts, and the reasons for those that are absent.

    Attributes:
        charts: the charts in the order of their types.
        absent: (run, type, reason) of each absent chart.
    """

    charts: tuple[Chart, ...]
    absent: tuple[tuple[str, str, str], ...] = ()


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
