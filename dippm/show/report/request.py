"""A resource request, with the places that were considered."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.decide.scheduling import ResourceRequest
from dippm.show.report.choice import slice_table
from dippm.show.report.choice_page import slice_bars
from dippm.show.report.parts import AnswerPart, warning_lines


def request_parts(request: ResourceRequest) -> Iterator[AnswerPart]:
    """Yield every place that was considered, the requested one, and notes."""
    yield slice_table(request.choice)
    yield str(request)
    yield from warning_lines(request.notes)


def request_bars(request: ResourceRequest) -> str:
    """Return bars of the memory that is needed and available, and of the latency, per place."""
    return slice_bars(request.choice)
