"""A chart as data, before any library draws it; every back-end draws every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dippm.show.report.runs.thinning import extremes

MOST_DRAWN = 2000
"""Points of a line that is drawn; csv and json get all."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        run: label of the run, or of the runs that it is the mean of.
        name: of the line; starts with that label.
        x: float64, [n], rising.
        y: float64, [n]; NaN where there is no value.
        low: least of what `y` is the mean of, [n]; None if it is of one run.
        high: greatest of it.
        n: of how many runs it is the mean.
        uuids: of those runs.
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
        """Return the line with the least and greatest of each stretch, so that no peak is lost."""
        if len(self.y) <= most or self.low is not None:
            return self
        rows = extremes(self.y, most)
        return replace(self, x=self.x[rows], y=self.y[rows])


@dataclass(frozen=True, slots=True)
class Level:
    """A height that does not change, such as what was predicted, with its interval.

    Attributes:
        run: label of the run, or of the runs that share it.
        name: what it is.
        value: in the unit of the chart.
        low: of the interval; None without one.
        high: of the interval.
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
    """A part of the x axis with a name, such as a span.

    Attributes:
        run: label of the run.
        name: of the span.
        start: on the x axis.
        end: on it.
        lane: below those of its run that it lies within, 0 for one that lies in none.
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
        title: what is drawn.
        x_label: with unit.
        y_label: with unit.
        lines: at least one.
        levels: beside the lines.
        stretches: behind the lines.
        unit: of y, "" for none.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        run: label of the run.
        name: what is measured, bars of one name stand together.
        mean: its height.
        low: least of what it is the mean of.
        high: greatest of it.
        n: of how many.
    """

    run: str
    name: str
    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars, with the range of what each is the mean of."""

    title: str
    y_label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """A matrix.

    Attributes:
        title: what is drawn, with the label of its run.
        run: label of the run.
        labels: of rows and columns.
        matrix: rows of numbers.
    """

    title: str
    run: str
    labels: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Settings side by side, a line each.

    Attributes:
        title: what is drawn.
        axes: names of settings, the last is the target.
        rows: label of the run, and a number or text per axis; None where it was not said.
    """

    title: str
    axes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | str | None, ...]], ...]

    def scale(self, axis: int) -> tuple[list[float], list[tuple[float, str]]]:
        """Return the place of each row on an axis, NaN without one, and its ticks.

        Numbers keep their values; texts are numbered in the order of the alphabet.
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
class Drawn:
    """Charts, and what could not be drawn.

    Attributes:
        charts: in the order of their types.
        absent: (run, type, reason) of what is not there.
    """

    charts: tuple[Chart, ...]
    absent: tuple[tuple[str, str, str], ...] = ()
