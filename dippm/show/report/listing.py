"""`Listing`: what is known here, entry by entry: devices, hosts, checkpoints, operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.numbers import show
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import Part


@dataclass(frozen=True, slots=True)
class Listing(Answer):
    """Entries of one kind.

    Attributes:
        title: of its page.
        entries: one flat mapping per row.
        document: as JSON-ready data.
        parts: what a terminal shows.
        drawn: column that its page draws, summed up by what stands in the first; "" for none.
        label: what is drawn, with its unit.
    """

    title: str
    entries: Sequence[Mapping[str, Any]]
    document: Mapping[str, Any]
    parts: Sequence[Part] = field(repr=False)
    drawn: str = ""
    label: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per entry."""
        return [dict(entry) for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return dict(self.document)


def listing_parts(listing: Listing) -> Iterator[Part]:
    """Yield what a terminal shows."""
    yield from listing.parts


def listing_bars(listing: Listing) -> str:
    """Return the drawn column, by what stands in the first one."""
    sums: dict[str, float] = {}
    for entry in listing.entries:
        name, value = str(next(iter(entry.values()))), entry.get(listing.drawn)
        if value:
            sums[name] = sums.get(name, 0.0) + value
    largest = sorted(sums.items(), key=lambda item: -item[1])
    made = [Bar(name, value, show(value)) for name, value in largest]
    return bars(listing.label, made)
