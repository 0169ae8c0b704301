"""Tables that fit the terminal: names fold, numbers do not, and dropped columns are named."""

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
"""Width below which a folded name is not readable."""
PIPE_FOLD = 80
"""Width at which names and sentences fold without a terminal."""
UNLIMITED = 1000
"""Width above which output is assumed to go to a pipe or a file."""
BETWEEN, EDGES = 3, 2
"""Spaces between columns, and at the edges."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: header of the column.
        folds: whether its cells may fold; numbers may not.
        rank: order in which columns are dropped if the terminal is too narrow, highest first;
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
"""First columns of every table of operators."""


@dataclass(frozen=True, slots=True)
class TerminalTable:
    """A table that adapts to the terminal when it is printed; never wider than its text.

    Attributes:
        columns: columns from left to right.
        rows: a cell per column: plain text, or `rich.text.Text` with style.
        title: title above the table.
        caption: one or several lines below the table.
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
        """Return the indices of the columns that fit a width."""
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
    """Return text from outside in a form that is safe for a terminal."""
    return Text(printable(text), style)


def _cell(cell: str | Text) -> Text:
    return shown(cell) if isinstance(cell, str) else cell
