"""What a scheduler is asked for, with the places that were looked at."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.decide.scheduling import ResourceRequest
from dippm.show.report.choice import slice_table
from dippm.show.report.choice_page import slice_bars
from dippm.show.report.parts import Part, warned


def request_parts(request: ResourceRequest) -> Iterator[Part]:
    """Yield every place that was looked at, the one that is asked for, and notes."""
    yield slice_table(request.choice)
    yield str(request)
    yield from warned(request.notes)


def request_bars(request: ResourceRequest) -> str:
    """Return what the model needs beside what each place has, and its latency on each."""
    return slice_bars(request.choice)
