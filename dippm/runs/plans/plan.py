"""A plan as read from its file, and the cells of its CSV table.

Cells have byte positions, so that the status of a row can be written without changing the rest of
the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dippm.errors import PlanError
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.workload import Workload, workloads

TABLES, SWEEPS = (".csv",), (".yml", ".yaml")


class Plan(NamedTuple):
    """A plan as read from its file.

    Attributes:
        path: path of the file, links resolved.
        data: content of the file.
        rows: rows in order, with the status from a separate status file if there is one.
        slots: cells of each row's status by number; empty if the file has no columns for it.
    """

    path: Path
    data: bytes
    rows: tuple[PlanRow, ...]
    slots: Mapping[int, Slots]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Groups of rows that start together, in order."""
        return workloads(self.rows)

    @property
    def status_file(self) -> Path:
        """File that holds the status of rows if the plan cannot."""
        return self.path.with_name(f"{self.path.name}.status.csv")


def is_plan(name: str) -> bool:
    """Return whether a file name is that of a plan."""
    return name.casefold().endswith((*TABLES, *SWEEPS))


# Records and cells of a CSV file.
#
# The format is RFC 4180 with padding: spaces and tabs around a cell or its quotes are ignored.


MOST_ROWS, MOST_CELLS = 200_000, 1_000
"""Limits for records of a file and cells of a record; a plan has ten columns."""
BOM = b"\xef\xbb\xbf"
_CELL = re.compile(rb'[ \t]*"((?:[^"]|"")*)"[ \t]*(?=[,\r\n]|\Z)|[^,\r\n]*')
_NEWLINE = re.compile(rb"\r\n|\n|\r")
PADDING = " \t"


class Cell(NamedTuple):
    """A cell of a file.

    Attributes:
        text: text without padding and quotes.
        start: byte position of the cell in the file, padding included.
        end: byte position after the cell, padding included.
    """

    text: str
    start: int
    end: int


class Record(NamedTuple):
    """A record of a table; a quoted cell may contain line ends.

    Attributes:
        line: number of the record's first line in the file, from 1.
        cells: cells from left to right.
    """

    line: int
    cells: tuple[Cell, ...]


class Slots(NamedTuple):
    """The cells that hold the status of a row.

    Attributes:
        status: cell of the status.
        run: cell of the run's UUID.
    """

    status: Cell
    run: Cell


def records(data: bytes) -> list[Record]:
    """Return the non-blank records of a file.

    Raises:
        PlanError: if it is not text, a quote is not closed, or a limit is exceeded.
    """
    found = (record for record in _records(data) if any(cell.text for cell in record.cells))
    held = list(islice(found, MOST_ROWS + 2))  # the header, and one row beyond the limit
    if len(held) > MOST_ROWS + 1:
        raise PlanError(f"it has more than {MOST_ROWS:,} rows", "Write several plans.")
    return held


def replaced(data: bytes, texts: dict[Cell, str]) -> bytes:
    """Return the bytes with new text in some cells, padded to the old width if it fits."""
    pieces, at = [], 0
    for cell in sorted(texts, key=lambda cell: cell.start):
        pieces += [data[at : cell.start], _pad_like(texts[cell], data[cell.start : cell.end])]
        at = cell.end
    return b"".join([*pieces, data[at:]])


def quoted(text: str) -> str:
    """Return text quoted as a cell if necessary."""
    plain = text == text.strip(PADDING) and not set(text) & set(',"\r\n')
    return text if plain else '"' + text.replace('"', '""') + '"'


def _pad_like(text: str, before: bytes) -> bytes:
    """Return a cell padded to the width of the former one, on the side where that was padded."""
    spelled = quoted(text).encode()
    on_the_right = before[:1] in (b" ", b"\t")
    return spelled.rjust(len(before)) if on_the_right else spelled.ljust(len(before))


def _records(data: bytes) -> Iterator[Record]:
    at = len(BOM) if data.startswith(BOM) else 0
    line = 1
    while at < len(data):
        cells = []
        while True:
            match = _CELL.match(data, at)
            assert match is not None  # it matches the empty string at least
            cells.append(Cell(_cell_text(match, line), match.start(), match.end()))
            at = match.end()
            if len(cells) > MOST_CELLS:
                hint = "Put a cell that holds a comma between double quotes."
                raise PlanError(f"line {line} has more than {MOST_CELLS:,} cells", hint)
            if data[at : at + 1] != b",":
                break
            at += 1
        yield Record(line, tuple(cells))
        newline = _NEWLINE.match(data, at)
        at = newline.end() if newline else at
        line += 1 + sum(len(_NEWLINE.findall(data, cell.start, cell.end)) for cell in cells)


def _cell_text(match: re.Match[bytes], line: int) -> str:
    """Return the text of a cell without padding and quotes.

    Raises:
        PlanError: if it is not UTF-8, or a quote is not closed.
    """
    try:
        if match[1] is not None:
            return match[1].decode().replace('""', '"')
        text = match[0].decode().strip(PADDING)
    except UnicodeDecodeError:
        raise PlanError(f"line {line} is no UTF-8 text", "Save the plan as UTF-8.") from None
    if text.startswith('"'):
        raise PlanError(
            f"line {line} has a quote that is not closed before a comma or its end",
            "Close the quote.",
        )
    return text
