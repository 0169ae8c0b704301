"""`Comparison`: many predictions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dippm.prediction import LABELS, Prediction, show
from dippm.printable import printable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("source", "device", "slice", "batch", "precision", *LABELS, "mig")


@dataclass(frozen=True, slots=True)
class Comparison(Sequence[Prediction]):
    """Predictions in the order in which they were asked for; prints as a table.

    Attributes:
        predictions: the points.
    """

    predictions: tuple[Prediction, ...]

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Comparison(self.predictions[index])
        return self.predictions[index]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.predictions)

    def sorted_by(self, column: str) -> Comparison:
        """Return the predictions in rising order of a column, absent values last.

        Raises:
            ValueError: if there is no such column.
        """
        if column not in COLUMNS:
            raise ValueError(f"no column {column!r}; columns: {', '.join(COLUMNS)}")

        def key(prediction: Prediction) -> tuple[bool, Any]:
            value = _row(prediction)[column]
            return value is None, 0 if value is None else value

        return Comparison(tuple(sorted(self.predictions, key=key)))

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per prediction; the keys are `COLUMNS`."""
        return [_row(prediction) for prediction in self.predictions]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame (needs pandas)."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(COLUMNS))

    def __str__(self) -> str:
        table = [list(COLUMNS), *([_cell(v) for v in row.values()] for row in self.rows())]
        widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{column}</th>" for column in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(v))}</td>" for v in row.values()) + "</tr>"
            for row in self.rows()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def _row(prediction: Prediction) -> dict[str, Any]:
    c = prediction.conditions
    return {
        "source": prediction.provenance.source,
        "device": c.device.name,
        "slice": c.mig and c.mig.name,
        "batch": c.batch,
        "precision": c.precision,
        **{target: getattr(prediction, target) for target in LABELS},
        "mig": prediction.mig and prediction.mig.name,
    }


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return show(value) if isinstance(value, float) else printable(str(value))
