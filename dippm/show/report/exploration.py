"""A searched design space in the terminal: its Pareto front, and notes."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.decide.exploration import Exploration
from dippm.show.report.parts import AnswerPart, warning_lines
from dippm.show.report.tables import Column, TerminalTable


def front_parts(found: Exploration) -> Iterator[AnswerPart]:
    """Yield the front, notes, why designs have no values, and what checks the first design."""
    columns, cells = found.table()
    yield TerminalTable([Column(name) for name in columns], cells, f" {found.title}")
    yield from warning_lines(found.notes())
    yield from warning_lines(
        f"{count} failed: {reason}" for reason, count in found.reasons().items()
    )
    yield f" {found.verify_line}"
