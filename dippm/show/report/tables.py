"""Tables that fit: names fold, numbers stay whole, and what has no room is left out and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dippm.base.printable import printable

NARROWEST = 16
"""Columns of the terminal below which a folded name is no longer readable."""
PIPE_FOLD = 80
"""Characters at which names and sentences fold where no terminal limits the width."""
UNLIMITED = 1000
"""Columns above which nobody looks at a table: it goes to a pipe or a file."""
BETWEEN, EDGES = 3, 2
"""Spaces that the table adds between columns, and at its sides."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: its header.
        folds: whether its cells may be broken into lines; numbers may not.
        rank: columns of the highest rank are left out first where the terminal is too narrow;
            those of rank 0 always stay.
    """

    name: str
    folds: bool = False
    rank: int = 0


OPERATOR_COLUMNS = (
    Column("operator", folds=True),
    Column("module", folds=True),
    Column("time ms"),
    Column("share"),
    Column("bound", rank=1),
)
"""What every table of operators begins with."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table that takes the shape of the terminal when it is printed; never wider than its text.

    Attributes:
        columns: from left to right.
        rows: a cell per column; text, with style if it is `rich.text.Text`.
        title: above.
        caption: below, one line or several.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]
    title: str = ""
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self.kept(options.max_width)
        left_out = [c.name for i, c in enumerate(self.columns) if i not in kept and c.name]
        if self.title:
            yield shown(self.title)
        table = Table(box=box.SIMPLE, pad_edge=False)
        widest = PIPE_FOLD if options.max_width > UNLIMITED else None
        for i in kept:
            column = self.columns[i]
            table.add_column(
                Text(column.name),
                overflow="fold",
                no_wrap=not column.folds,
                max_width=widest if column.folds else None,
                min_width=min(self._width(i), NARROWEST) if column.folds else self._width(i),
            )
        for row in self.rows:
            table.add_row(*(_cell(row[i]) for i in kept))
        yield table
        if self.caption:
            yield from map(shown, self.caption.split("\n"))
        if left_out:
            yield Text(f"not shown in {options.max_width} columns: {', '.join(left_out)}", "dim")

    def kept(self, width: int) -> list[int]:
        """Return the positions of the columns that fit into a width."""
        kept = list(range(len(self.columns)))
        while self._least(kept) > width:
            most = max(self.columns[i].rank for i in kept)
            if most == 0:
                break
            kept.remove(next(i for i in reversed(kept) if self.columns[i].rank == most))
        return kept

    def _least(self, kept: Sequence[int]) -> int:
        widths = [self._width(i) for i in kept]
        folds = [self.columns[i].folds for i in kept]
        least = (min(w, NARROWEST) if f else w for w, f in zip(widths, folds, strict=True))
        return sum(least) + BETWEEN * (len(kept) - 1) + EDGES

    def _width(self, column: int) -> int:
        return max(cell_len(line) for cell in self._cells(column) for line in cell.split("\n"))

    def _cells(self, column: int) -> Iterator[str]:
        yield self.columns[column].name
        for row in self.rows:
            yield str(_cell(row[column]))


def shown(text: str, style: str = "") -> Text:
    """Return text from outside as it may go to a terminal: no markup, nothing hidden."""
    return Text(printable(text), style)


def _cell(cell: str | Text) -> Text:
    return shown(cell) if isinstance(cell, str) else cell
