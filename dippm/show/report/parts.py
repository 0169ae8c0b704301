"""`AnswerPart`: terminal output of answers: a table, a line, or the command that checks one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.estimate.models.targets import Estimate
from dippm.estimate.prediction import Prediction
from dippm.show.report.tables import Column, TerminalTable

ESTIMATES = (Column(""), Column("predicted"), Column("90 % interval"))


class StderrLine(str):
    """A line about an answer rather than part of it: it goes to stderr."""

    __slots__ = ()


AnswerPart = TerminalTable | str | Prediction
"""A prediction stands for the `dippm measure` command that checks it."""


def warning_lines(warnings: Iterable[str]) -> Iterator[StderrLine]:
    """Yield warnings, each once."""
    for warning in dict.fromkeys(warnings):
        yield StderrLine(f" ! {printable(warning)}")


def estimate_row(label: str, found: Estimate) -> tuple[str, str, str]:
    """Return label, value and interval of a quantity, for `ESTIMATES`."""
    return label, show(found.value), between(found.interval.low, found.interval.high)
