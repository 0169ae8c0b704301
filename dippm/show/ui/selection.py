"""Experiments → workloads → runs: the list, its filters, and its selection."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dippm.runs.store.query import Condition, check_length, holds

Name = TypeVar("Name", bound=Hashable)
ALONE = "(none)"
"""Name of the workload of runs without one."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """Entry of a run in the list.

    Attributes:
        uuid: uuid of the run.
        name: name for people, any text.
        experiment: experiment of the run.
        group: workload of the run; "" for none.
        status: final status, or "running".
        wall_ns: start in ns since 1970.
        seconds: duration, so far if it is running.
        description: description by the user.
        metrics: metrics by name.
        words: all searchable texts in lower case.
        params: settings of the workload.
        tags: tags by the user.
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


def filter_runs(
    runs: Iterable[ListedRun], search: str = "", status: str = "", condition: str = ""
) -> list[ListedRun]:
    """Return the runs that contain all words, have the status and meet the condition.

    Args:
        runs: any runs.
        search: words, case-insensitive.
        status: exact status; "" for all.
        condition: condition such as "tree.rss_mb.max > 100"; several with commas; "" for none.

    Raises:
        RunError: if a condition is not valid, or a text is too long.
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


def count_names(names: Iterable[Name]) -> list[tuple[Name, int]]:
    """Return the count of each name, in the order of first occurrence."""
    found: dict[Name, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return list(found.items())


def runs_within(
    runs: Iterable[ListedRun],
    experiments: Collection[str] = (),
    workloads: Sequence[tuple[str, str]] = (),
) -> list[ListedRun]:
    """Return the runs of given experiments and workloads; empty stands for all."""
    named = set(map(tuple, workloads))
    return [
        run
        for run in runs
        if (not experiments or run.experiment in experiments)
        and (not named or run.workload in named)
    ]


def labels(runs: Sequence[ListedRun]) -> dict[str, str]:
    """Return a label per run by uuid: its name, with a suffix if the name is not unique."""
    often = dict(count_names(run.name or run.uuid[:8] for run in runs))
    return {
        run.uuid: name if often[name] == 1 else f"{name} {run.uuid[:8]}"
        for run in runs
        for name in [run.name or run.uuid[:8]]
    }
