"""`Answer`: base of all answers, which print, render in a notebook, and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from dippm.base.number_format import show
from dippm.base.printable import csv_table, printable

if TYPE_CHECKING:
    import pandas as pd


class Answer:
    """Base of all answers: a subclass has `rows` and `to_dict`, and a view.

    Views (terminal output, page) are registered in `dippm.show.report.answers`, which depends on
    all answers and is therefore imported by name when an answer is shown.
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the answer as one flat mapping per row; None is absent."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        raise NotImplementedError

    def columns(self) -> list[str]:
        """Return the names of all columns of `rows`, in their order."""
        return list(dict.fromkeys(name for row in self.rows() for name in row))

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame (needs pandas)."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=self.columns())

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """Return the rows as comma-separated text with unrounded numbers; empty is absent.

        Several texts in a cell, such as warnings, are separated by " | ".

        Args:
            path: file that the text is also written to; None for none.

        Raises:
            DippmError: if the file cannot be written.
        """
        columns = self.columns()
        rows = ([_cell(row.get(name)) for name in columns] for row in self.rows())
        return _written(csv_table(columns, rows), path)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return a page with a picture, every row and the JSON document; it needs no network.

        Args:
            path: file that the page is also written to; None for none.

        Raises:
            DippmError: if the file cannot be written, or a plotting library is missing.
        """
        return _written(_views().page_of(self), path)

    def __str__(self) -> str:
        return str(_views().text_of(self))

    def _repr_html_(self) -> str:
        return str(_views().markup_of(self))


def cell_text(value: Any) -> str:
    """Format a value for a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return show(value) if isinstance(value, float) else printable(str(value))


def align_columns(lines: Sequence[Sequence[str]], gap: str = "  ") -> str:
    """Return lines of cells as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(gap.join(cells).rstrip() for cells in padded)


def _views() -> Any:
    return import_module("dippm.show.report.answers")


def _written(text: str, path: str | PathLike[str] | None) -> str:
    if path is not None:
        import_module("dippm.show.report.files").write_text(path, text)
    return text


def _cell(value: Any) -> Any:
    """Return the value of a cell of a file, with several texts joined."""
    if isinstance(value, Mapping):
        value = [f"{name}: {text}" for name, text in value.items()]
    return " | ".join(map(str, value)) or None if isinstance(value, list) else value
