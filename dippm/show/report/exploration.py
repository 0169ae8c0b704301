"""A searched design space in the terminal: its front, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.decide.exploration import Exploration
from dippm.show.report.parts import Part, warned
from dippm.show.report.tables import Column, Fitted


def front_parts(found: Exploration) -> Iterator[Part]:
    """Yield the front, notes, and why designs have no values."""
    columns, cells = found.table()
    yield Fitted([Column(name) for name in columns], cells, f" {found.title}")
    yield from warned(found.notes())
    yield from warned(f"{count} failed: {reason}" for reason, count in found.reasons().items())
