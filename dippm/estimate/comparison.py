"""`Comparison`: many predictions side by side, with the reason for each that could not be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dippm.base.numbers import show
from dippm.base.printable import csv_table, printable
from dippm.errors import DippmError
from dippm.estimate import conditions
from dippm.estimate.conditions import Conditions
from dippm.estimate.prediction import LABELS, Prediction

if TYPE_CHECKING:
    import pandas as pd

WHERE = ("source", "device", "slice", "batch", "precision")
SHOWN = (*WHERE, *LABELS, "fits", "mig", "error")
"""Columns of text and notebooks, where an interval stands beside its value."""
_APART = (*WHERE, "mig", "host")
CONDITIONS = tuple(name for name in conditions.CONDITIONS if name not in _APART)
FIT = ("memory_bound_mb", "capacity_mb", "headroom_mb", "fits")
COLUMNS = (
    *(*WHERE, *LABELS, "mig", "error"),
    *(f"{target}_{end}" for target in LABELS for end in ("low", "high")),
    *("coverage", *FIT, *CONDITIONS, "host", "host_launch_us", "host_assumed"),
    *("checkpoint", "absent", "warnings", "verify"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A model, or one point of it, that could not be predicted.

    Attributes:
        source: what a prediction would have called the model.
        error: why not.
        conditions: the point; None if it was the model that could not be read, or if the device
            has no such precision.
        device: name of the device that has no such precision.
        precision: that it does not have.
        asked: False if nobody named the precision, but "all" of them.
    """

    source: str
    error: DippmError
    conditions: Conditions | None = None
    device: str | None = None
    precision: str | None = None
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Comparison(Sequence[Prediction]):
    """Predictions in the order in which they were asked for; prints as a table.

    As a sequence it holds the predictions; its rows hold the failures too, each in its place.

    Attributes:
        entries: what became of each point.
    """

    entries: tuple[Prediction | Failure, ...]

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The points that could be predicted."""
        return tuple(entry for entry in self.entries if isinstance(entry, Prediction))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What could not be predicted, and why."""
        return tuple(e for e in self.entries if isinstance(e, Failure) and e.asked)

    @property
    def absent(self) -> tuple[Failure, ...]:
        """What "all" precisions leave out, and why."""
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

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame (needs pandas)."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(COLUMNS))

    def to_csv(self) -> str:
        """Return the rows as comma-separated text with unrounded numbers; empty is absent.

        Warnings, and reasons of what is absent, are one text each, with " | " between them.
        """
        rows = [
            {
                **row,
                "absent": " | ".join(f"{n}: {why}" for n, why in row["absent"].items()) or None,
                "warnings": " | ".join(row["warnings"]) or None,
            }
            for row in self.rows()
        ]
        return csv_table(COLUMNS, ([row[name] for name in COLUMNS] for row in rows))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; "error" has type, message and hint."""
        errors = (e.error.to_dict() if isinstance(e, Failure) else None for e in self.entries)
        rows = zip(self.rows(), errors, strict=True)
        return {"rows": [{**row, "error": error} for row, error in rows]}

    def __str__(self) -> str:
        columns = self.columns()
        table = [columns, *([shown_cell(row, name) for name in columns] for row in self.rows())]
        widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        )

    def columns(self) -> list[str]:
        """Return the columns that say something: slice and error only where one has them.

        Whether it fits is said where it is not sure that all do.
        """
        rows = self.rows()
        seldom = {name for name in ("slice", "error") if all(row[name] is None for row in rows)}
        seldom |= {"fits"} if all(row["fits"] for row in rows) else set()
        return [name for name in SHOWN if name not in seldom]

    def _repr_html_(self) -> str:
        columns = self.columns()
        head = "".join(f"<th>{column}</th>" for column in columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(shown_cell(row, name))}</td>" for name in columns)
            + "</tr>"
            for row in self.rows()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def _row(entry: Prediction | Failure) -> dict[str, Any]:
    c = entry.conditions
    where: dict[str, Any] = {
        "source": entry.source if isinstance(entry, Failure) else entry.provenance.source,
        "device": c and c.device.name,
        "slice": c and c.mig and c.mig.name,
        "batch": c and c.batch,
        "precision": c and c.precision,
    }
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS), **where, "absent": {}, "warnings": []}
    told = c.to_dict() if c else {}
    row |= {name: told.get(name) for name in CONDITIONS}
    if isinstance(entry, Failure):
        if c is None:
            row |= {"device": entry.device, "precision": entry.precision}
        return {**row, "host": c and c.host and c.host.name, "error": entry.error.message}
    for target in LABELS:
        interval = entry.intervals.get(target)
        row[target] = getattr(entry, target)
        row[f"{target}_low"] = interval and interval.low
        row[f"{target}_high"] = interval and interval.high
        row["coverage"] = interval.coverage if interval else row["coverage"]
    host = entry.host
    return {
        **row,
        **{name: getattr(entry, name) for name in FIT},
        "mig": entry.mig and entry.mig.name,
        "host": host and host.name,
        "host_launch_us": host and host.launch_us,
        "host_assumed": host and host.assumed,
        "checkpoint": entry.provenance.checkpoint,
        "absent": dict(entry.absent),
        "warnings": list(entry.warnings),
        "verify": entry.verify,
    }


def between(row: Mapping[str, Any], target: str) -> str:
    """Return the interval of a target as text; "" where there is none."""
    low, high = row[f"{target}_low"], row[f"{target}_high"]
    return "" if low is None or high is None else f"{show(low)} – {show(high)}"


def shown_cell(row: Mapping[str, Any], name: str) -> str:
    """Return a cell as people read it: a value with its interval."""
    value = row[name]
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return printable(str(value))
    interval = between(row, name) if name in LABELS else ""
    return f"{show(value)} ({interval})" if interval else show(value)
