"""`Comparison`: many predictions side by side, with the reason for each that could not be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.base.answer import Answer, align_columns, cell_text
from dippm.base.number_format import between
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.estimate.derived import DERIVED
from dippm.estimate.prediction import COLUMNS, LABELS, WHERE, Prediction, point_row

SHOWN = (*WHERE, *LABELS, "fits", "mig", "error")
"""Columns of text and notebooks, where a value and its interval share a column."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A model, or one point of it, that could not be predicted.

    Attributes:
        source: name of the model.
        error: reason of the failure.
        conditions: the point; None if the model could not be read, or if the device does not have
            the precision.
        device: name of the device without the precision.
        precision: precision that the device does not have.
        asked: whether the precision was named; False if it is one of "all".
    """

    source: str
    error: DippmError
    conditions: Conditions | None = None
    device: str | None = None
    precision: str | None = None
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Comparison(Answer, Sequence[Prediction]):
    """Predictions in the order in which they were asked for; prints as a table.

    As a sequence it holds the predictions; its rows hold the failures too, each in its place.

    Attributes:
        entries: prediction or failure of each point.
    """

    entries: tuple[Prediction | Failure, ...]

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The points that could be predicted."""
        return tuple(entry for entry in self.entries if isinstance(entry, Prediction))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The points that could not be predicted, with their reasons."""
        return tuple(e for e in self.entries if isinstance(e, Failure) and e.asked)

    @property
    def absent(self) -> tuple[Failure, ...]:
        """The precisions that "all" leaves out, with their reasons."""
        return tuple(e for e in self.entries if isinstance(e, Failure) and not e.asked)

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Comparison(self.predictions[index])
        return self.predictions[index]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.predictions)

    def sorted_by(self, column: str) -> Comparison:
        """Return the entries in rising order of a column, absent values last.

        Raises:
            ValueError: if there is no such column.
        """
        if column not in COLUMNS:
            raise ValueError(f"no column {column!r}; columns: {', '.join(COLUMNS)}")

        def key(entry: Prediction | Failure) -> tuple[bool, Any]:
            value = _row(entry)[column]
            return value is None, 0 if value is None else value

        return Comparison(tuple(sorted(self.entries, key=key)))

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per entry; the keys are `COLUMNS`.

        "error" is None, or why there are no values. Intervals are "_low" and "_high", which hold
        with the probability "coverage"; "absent" is a mapping and "warnings" a list.
        """
        return [_row(entry) for entry in self.entries]

    def columns(self) -> list[str]:
        """Return the names of all columns of `rows`, in their order."""
        return list(COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; "error" has type, message and hint.

        What follows from other columns (`dippm.estimate.derived`) is in the files alone.
        """
        rows = self.rows()
        for row, entry in zip(rows, self.entries, strict=True):
            row["error"] = entry.error.to_dict() if isinstance(entry, Failure) else None
            for name in DERIVED:
                del row[name]
        return {"rows": rows}

    def __str__(self) -> str:
        columns = self.shown_columns()
        return align_columns(
            [columns, *([_shown(row, name) for name in columns] for row in self.rows())]
        )

    def shown_columns(self) -> list[str]:
        """Return the columns that say something: slice and error only where one has them.

        Whether it fits is said where it is not sure that all do.
        """
        rows = self.rows()
        seldom = {name for name in ("slice", "error") if all(row[name] is None for row in rows)}
        seldom |= {"fits"} if all(row["fits"] for row in rows) else set()
        return [name for name in SHOWN if name not in seldom]


def _row(entry: Prediction | Failure) -> dict[str, Any]:
    if isinstance(entry, Prediction):
        return entry.rows()[0]
    c = entry.conditions
    row = point_row(entry.source, c)
    if c is None:
        row |= {"device": entry.device, "precision": entry.precision}
    return {**row, "host": c and c.host and c.host.name, "error": entry.error.message}


def _shown(row: Mapping[str, Any], name: str) -> str:
    """Return a cell as people read it: a value with its interval."""
    interval = between(row[f"{name}_low"], row[f"{name}_high"]) if name in LABELS else ""
    return f"{cell_text(row[name])} ({interval})" if interval else cell_text(row[name])
