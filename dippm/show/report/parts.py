"""`Part`: what a terminal shows of answers: a table, a line, or the line that checks one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dippm.base.numbers import between, show
from dippm.base.printable import printable
from dippm.estimate.models.targets import Estimate
from dippm.estimate.prediction import Prediction
from dippm.show.report.tables import Column, Fitted

ESTIMATES = (Column(""), Column("predicted"), Column("90 % interval"))


class Aside(str):
    """A line about an answer, not of it: it goes to stderr."""

    __slots__ = ()


Part = Fitted | str | Prediction
"""Of a prediction the line of `dippm measure` that checks it is shown."""


def warned(warnings: Iterable[str]) -> Iterator[Aside]:
    """Yield warnings, each once."""
    for warning in dict.fromkeys(warnings):
        yield Aside(f" ! {printable(warning)}")


def estimate_row(label: str, found: Estimate) -> tuple[str, str, str]:
    """Return label, value and interval of a quantity, for `ESTIMATES`."""
    return label, show(found.value), between(found.interval.low, found.interval.high)
