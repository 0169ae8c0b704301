"""What of a run can be drawn: a type, a description, and the shape that it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dippm.errors import UnknownNameError
from dippm.store.stored import StoredRun
from dippm.umlaut.rows import MeasuredCalls

Shape = Literal["lines", "bars", "epochs", "heat", "parallel"]
SHAPES: dict[str, Shape] = {
    "metric": "epochs",
    "loss": "epochs",
    "time_to_accuracy": "epochs",
    "timed_time_to_accuracy": "epochs",
    "confusion_matrix": "heat",
    "hyperparameters": "parallel",
}


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Something of runs that can be drawn.

    Attributes:
        type: "tree.rss_mb" of a series, "time_s" of calls, "confusion_matrix" of a tracker, or the
            name of a metric that was told.
        description: the function of calls, or what the user called it; "" for series.
        shape: of its chart.
    """

    type: str
    description: str
    shape: Shape


def entries(run: StoredRun) -> list[Entry]:
    """Return what can be drawn of a run, series first."""
    found = [Entry(series, "", "lines") for series in sorted(run.summaries)]
    measured = MeasuredCalls(run.start)
    calls = {
        Entry(name, span.name, "bars") for span in run.spans for name in measured.metrics(span)
    }
    told = set()
    for value in run.values:
        shape = SHAPES.get(value.kind, "epochs")
        if value.kind == "metric":
            told.add(Entry(value.name, value.description, shape))
        else:
            told.add(Entry(value.kind, value.name, shape))
    return [*found, *sorted(calls), *sorted(told)]


def chosen(
    runs: Sequence[StoredRun], types: Iterable[str] = (), descriptions: Iterable[str] = ()
) -> list[Entry]:
    """Return the entries of several runs, each once, of these types and descriptions.

    Args:
        runs: at least one.
        types: names of types; none for all.
        descriptions: exact; none for all. Series have none, and stay if their type is named.

    Raises:
        UnknownNameError: if no run has a type, or no such description.
    """
    known = list(dict.fromkeys(entry for run in runs for entry in entries(run)))
    wanted, described = list(types), list(descriptions)
    for name in wanted:
        if all(entry.type != name for entry in known):
            raise UnknownNameError.of("type", name, {entry.type for entry in known})
    for name in described:
        if all(entry.description != name for entry in known):
            raise UnknownNameError.of("description", name, {e.description for e in known})
    return [
        entry
        for entry in known
        if (not wanted or entry.type in wanted)
        and (
            not described
            or entry.description in described
            or (bool(wanted) and not entry.description)
        )
    ]
