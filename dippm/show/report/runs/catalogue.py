"""The charts that a run offers: type, description and shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dippm.errors import UnknownNameError
from dippm.runs.store.stored_run import StoredRun
from dippm.umlaut.descriptions import KINDS, logged_types
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
    """A chart that runs offer.

    Attributes:
        type: "tree.rss_mb" of a series, "time_s" of calls, "confusion_matrix" of a tracker, or the
            name of a reported metric.
        description: function of the calls, or the user's name; "" for series.
        shape: shape of the chart.
    """

    type: str
    description: str
    shape: Shape


def entries(run: StoredRun) -> list[Entry]:
    """Return the charts of a run, series first."""
    found = [Entry(series, "", "lines") for series in sorted(run.summaries)]
    measured = MeasuredCalls(run.start)
    calls = {
        Entry(name, span.name, "bars") for span in run.spans for name in measured.metrics(span)
    }
    reported = set()
    for value in run.values:
        shape = SHAPES.get(value.kind, "epochs")
        if value.kind == "metric":
            reported.add(Entry(value.name, value.description, shape))
        else:
            reported.add(Entry(value.kind, value.name, shape))
    return [*found, *sorted(calls), *sorted(reported)]


def chosen(
    runs: Sequence[StoredRun], types: Iterable[str] = (), descriptions: Iterable[str] = ()
) -> list[Entry]:
    """Return the distinct entries of several runs with given types and descriptions.

    Args:
        runs: at least one run.
        types: names of types, or types of UMLAUT's rows ("memory", "timed tta"); empty for all.
        descriptions: exact descriptions, or names of metrics; empty for all. Series have none, and
            are kept if their type is named.

    Raises:
        UnknownNameError: if no run has a type or description.
    """
    known = _words(runs)
    wanted, described = set(types), set(descriptions)
    _check("type", wanted, (words for words, _ in known.values()))
    _check("description", described, (words for _, words in known.values()))
    return [
        entry
        for entry, (of_type, called) in known.items()
        if (not wanted or of_type & wanted)
        and (not described or called & described or (bool(wanted) and not entry.description))
    ]


def _check(what: str, asked: set[str], known: Iterable[set[str]]) -> None:
    there: set[str] = set().union(*known)
    for name in sorted(asked - there):
        raise UnknownNameError.of(what, name, there)


def _words(runs: Sequence[StoredRun]) -> dict[Entry, tuple[set[str], set[str]]]:
    """Return all entries of runs with the words for their type, and for their description."""
    found: dict[Entry, tuple[set[str], set[str]]] = {}
    for run in runs:
        calls, types = MeasuredCalls(run.start).described, logged_types(run.start)
        of_series: dict[str, set[str]] = {}
        for metrics in calls.values():
            for about in metrics.values():
                of_series.setdefault(about.get("series", ""), set()).add(about["type"])
        for entry in entries(run):
            of_type, called = found.setdefault(entry, ({entry.type}, {entry.description}))
            about = calls.get(entry.description, {}).get(entry.type, {})
            if entry.shape == "bars" and about:
                of_type.add(about["type"])
                called.add(about["description"])
            elif entry.shape == "lines":
                of_type |= of_series.get(entry.type, set())
            elif entry.shape != "bars":
                of_type |= {old for old, kind in KINDS.items() if kind == entry.type}
                if entry.type in types:
                    of_type.add(types[entry.type][0])
                    called |= {entry.type, types[entry.type][1]}
    return found
