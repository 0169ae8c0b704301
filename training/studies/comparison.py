"""`Comparison`: our kernels compared with another list of kernels, by model and over all models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from training.studies.kernel_lines import Line, Pair, side_by_side, totals
from training.studies.kernel_tables import (
    class_rows,
    headings,
    model_rows,
    shares,
    terminal_table,
    write_results,
)

WIDTH = 170
"""Width of a table in a file, in characters."""


class Comparison:
    """Sums by kernel class over the models so far.

    Args:
        kinds: classes in the order of the tables.
        kind: column name of a class.
        theirs: name of the other list.
        listed: whether to print both lists for each model.
        summary: whether to omit the table of each model.
    """

    def __init__(
        self, kinds: Sequence[str], kind: str, theirs: str, *, listed: bool, summary: bool
    ) -> None:
        self._kinds, self._theirs = kinds, theirs
        self._listed, self._summary = listed, summary
        self._headings = headings(kind, "off", theirs)
        self._console = Console(width=None if Console().is_terminal else WIDTH, highlight=False)
        self._found: dict[str, Pair] = {}

    @contextlib.contextmanager
    def reported(self, spec: str) -> Iterator[None]:
        """Report the error of a model, so that one model does not stop the others."""
        try:
            yield
        except Exception as error:
            words = f"{spec}: {type(error).__name__}: {error}"[:400]
            self._console.print(words, markup=False)

    def add(self, spec: str, ours: list[Line], theirs: list[Line]) -> None:
        """Add a model, and print its requested tables."""
        pair = self._found[spec] = totals(ours), totals(theirs)
        if self._listed:
            text = "\n".join(side_by_side(ours, theirs))
            self._console.print(text, markup=False, soft_wrap=True)
        if not self._summary:
            rows = class_rows(self._kinds, [pair])
            self._console.print(terminal_table(spec, self._headings, rows))

    def close(self, results: Path | None, title: str, note: str) -> None:
        """Print the tables over all models, and write them to files with this stem, if given."""
        if len(self._found) > 1:
            names = headings("model", "what differs most", self._theirs)
            self._console.print(terminal_table("models", names, model_rows(self._found)))
            rows = class_rows(self._kinds, list(self._found.values()))
            self._console.print(terminal_table("all", self._headings, rows))
            self._console.print(shares(self._found))
        if results is not None:
            write_results(results, title, [note], self._theirs, self._kinds, self._found)
