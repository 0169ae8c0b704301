"""Experiments → workloads → runs: the list, filtered, and what is selected in it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dippm.runs.store.query import Condition, check_length, holds

Name = TypeVar("Name", bound=Hashable)
ALONE = "(none)"
"""How the workload is called of runs that belong to none."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What the list knows of a run.

    Attributes:
        uuid: of the run.
        name: for people; any text.
        experiment: what it is gathered under.
        group: the workload that it belongs to, "" for none.
        status: how it ended, or "running".
        wall_ns: when it started, nanoseconds since 1970.
        seconds: how long it took, or so far.
        description: a sentence of the user's.
        metrics: by name.
        words: all texts that a search looks in, in lower case.
        params: settings of the workload.
        tags: free words of the user's.
    """

    uuid: str
    name: str
    experiment: str
    group: str
    status: str
    wall_ns: int
    seconds: float
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    words: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def workload(self) -> tuple[str, str]:
        """Experiment and workload."""
        return self.experiment, self.group or ALONE


def filtered(
    runs: Iterable[Listed], search: str = "", status: str = "", condition: str = ""
) -> list[Listed]:
    """Return the runs that hold all words, have the status and fulfil the condition.

    Args:
        runs: any.
        search: words, in any case.
        status: exact, "" for all.
        condition: such as "tree.rss_mb.max > 100"; several with commas; "" for none.

    Raises:
        RunError: if a condition is none, or a text too long.
    """
    for text in (search, status, condition):
        check_length(text)
    conditions = [Condition.parse(part) for part in condition.split(",") if part.strip()]
    return [
        run
        for run in runs
        if holds(run.words, search)
        and status in ("", run.status)
        and all(one.holds(run.metrics) for one in conditions)
    ]


def counted(names: Iterable[Name]) -> list[tuple[Name, int]]:
    """Return each name with how often it stands there, in the order of its first."""
    found: dict[Name, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return list(found.items())


def within(
    runs: Iterable[Listed],
    experiments: Collection[str] = (),
    workloads: Sequence[tuple[str, str]] = (),
) -> list[Listed]:
    """Return the runs of these experiments and workloads; of none named, those of all."""
    named = set(map(tuple, workloads))
    return [
        run
        for run in runs
        if (not experiments or run.experiment in experiments)
        and (not named or run.workload in named)
    ]


def joined(selected: Iterable[str], more: Iterable[str]) -> list[str]:
    """Return a selection with further runs, in the order of selection."""
    return list(dict.fromkeys([*selected, *more]))


def labels(runs: Sequence[Listed]) -> dict[str, str]:
    """Return a label per run by its uuid: its name, with what tells it from others of that name."""
    often = dict(counted(run.name or run.uuid[:8] for run in runs))
    return {
        run.uuid: name if often[name] == 1 else f"{name} {run.uuid[:8]}"
        for run in runs
        for name in [run.name or run.uuid[:8]]
    }
