"""`Listing`: a list of known entries: devices, hosts, checkpoints, operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import AnswerPart


@dataclass(frozen=True, slots=True)
class Listing(Answer):
    """Entries of one kind.

    Attributes:
        title: title of the page.
        entries: one flat mapping per row.
        document: JSON-ready data.
        parts: terminal output.
        drawn: column that the page plots, summed by the first column; "" for none.
        label: label of the plotted quantity, with its unit.
    """

    title: str
    entries: Sequence[Mapping[str, Any]]
    document: Mapping[str, Any]
    parts: Sequence[AnswerPart] = field(repr=False)
    drawn: str = ""
    label: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per entry."""
        return [dict(entry) for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return dict(self.document)


def listing_parts(listing: Listing) -> Iterator[AnswerPart]:
    """Yield the terminal output."""
    yield from listing.parts


def listing_bars(listing: Listing) -> str:
    """Return the plotted column as bars, summed by the first column."""
    sums: dict[str, float] = {}
    for entry in listing.entries:
        name, value = str(next(iter(entry.values()))), entry.get(listing.drawn)
        if value:
            sums[name] = sums.get(name, 0.0) + value
    largest = sorted(sums.items(), key=lambda item: -item[1])
    made = [Bar(name, value, show(value)) for name, value in largest]
    return bars(listing.label, made)
