"""Runs of a store that shared a device, ran alone, or did the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dippm.measure.readings import Absent
from dippm.runs.tracking.window import Window, over

if TYPE_CHECKING:
    from dippm.runs.store.columns import Column
    from dippm.runs.store.record import Span
    from dippm.runs.store.stored_run import StoredRun

PROFILED = "profiled"
TimeRange = tuple[int, int]
"""Start and end in ns on the machine's monotonic clock."""


def neighbours_of(run: StoredRun, runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs that shared a device with a run for a while, ordered by start.

    They ran on the same machine at the same time, on a device of the same number or UUID; runs that
    name no device share the machine.
    """
    found = [
        other
        for other in runs
        if other.uuid != run.uuid
        and _may_overlap(run, other)
        and other.start.host == run.start.host
        and _devices(other) & _devices(run)
    ]
    return tuple(sorted(found, key=lambda other: other.wall_ns))


def was_alone(run: StoredRun, runs: Iterable[StoredRun]) -> bool:
    """Whether a run had its devices to itself, as far as the store and its tags show."""
    tags = run.start.tags
    return (
        tags.get("seats", "1") == "1"
        and tags.get("neighbours", "none") == "none"
        and tags.get("sharing", "none") == "none"
        and not tags.get("beside")
        and not neighbours_of(run, runs)
    )


def same_work(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs did the same work on the same machine: command, params and host."""
    mine, theirs = run.start, other.start
    return (mine.command, dict(mine.params), mine.host) == (
        theirs.command,
        dict(theirs.params),
        theirs.host,
    )


def is_comparable(run: StoredRun) -> bool:
    """Whether the times of a run are valid: it succeeded, and was not profiled."""
    return run.status == "finished" and PROFILED not in run.start.tags


def time_range(run: StoredRun) -> TimeRange:
    """Return start and end of a run."""
    return run.start.at.monotonic_ns, run.end.at.monotonic_ns


def shared_time(run: StoredRun, neighbours: Sequence[StoredRun]) -> tuple[TimeRange, ...]:
    """Return the time ranges of a run in which at least one neighbour ran, in order."""
    first, last = time_range(run)
    merged: list[TimeRange] = []
    for begin, end in sorted(map(time_range, neighbours)):
        begin, end = max(begin, first), min(end, last)
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def spans_within(spans: Iterable[Span], ranges: Sequence[TimeRange]) -> tuple[Span, ...]:
    """Return the spans that lie entirely within one of several ranges."""
    return tuple(
        span
        for span in spans
        if span.end_ns is not None
        and any(begin <= span.start_ns and span.end_ns <= end for begin, end in ranges)
    )


def _devices(run: StoredRun) -> frozenset[str]:
    named = run.start.tags.get("devices", "").replace(",", "+").split("+")
    return frozenset(part.strip() for part in named if part.strip(" -")) or frozenset({""})


def _may_overlap(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs overlap in wall-clock time, to avoid reading most records."""
    mine, theirs = (
        (each.wall_ns, each.wall_ns + round(each.seconds * 1e9)) for each in (run, other)
    )
    return mine[0] < theirs[1] and theirs[0] < mine[1]


# Energy of runs that share a board: measured in total, estimated for each run.
#
# A board only counts its total energy, so the share of one run cannot be measured. It is an
# estimate by a stated rule, never a measurement, and never a training label.


COUNTER, BUSY = ".energy_j", ".sm_active_percent"
BY_BUSY = "by the share of busy multiprocessors of each slice"
EQUAL = "in equal parts, since no counter tells the runs apart"


@dataclass(frozen=True, slots=True)
class SharedEnergy:
    """Energy of the boards while several runs all ran.

    Attributes:
        seconds: time in which all of them ran.
        all_j: measured energy of the boards with all runs and idle power; or the reason for none.
        estimates_j: estimate for each run, in their order; empty without one.
        rule: how the energy was divided.
        idle_w: idle power of the boards, divided evenly before the rest; None if it was not given.
    """

    seconds: float
    all_j: float | Absent
    estimates_j: tuple[float, ...]
    rule: str
    idle_w: float | None


def shared_energy(runs: Sequence[StoredRun], *, idle_w: float | None = None) -> SharedEnergy:
    """Return the energy of the boards that runs shared, and an estimate of each run's share.

    Idle energy is divided evenly. The rest is divided by the integral of busy multiprocessors if
    each run has that of its own slice (NVML's GPM under MIG, Hopper and later), else evenly.

    Args:
        runs: runs that shared the same devices.
        idle_w: idle power of the boards, W.
    """
    times = [time_range(run) for run in runs]
    begin, end = max(first for first, _ in times), min(last for _, last in times)
    seconds = max(0.0, (end - begin) / 1e9)
    if not seconds:
        return SharedEnergy(0.0, Absent("they never ran all at once"), (), "", idle_w)
    counted = [_measured_energy(run, begin, end) for run in runs]
    known = [energy for energy in counted if not isinstance(energy, Absent)]
    if not known:
        return SharedEnergy(seconds, counted[0], (), "", idle_w)
    all_j = max(known)  # all read the same boards; a run with missing samples has no value
    weights = [_busy(run, begin, end) for run in runs]
    rule = BY_BUSY if all(weights) else EQUAL
    shares = [w / sum(weights) for w in weights] if all(weights) else [1 / len(runs)] * len(runs)
    idle_j = min(all_j, (idle_w or 0.0) * seconds)
    parts = tuple(idle_j / len(runs) + share * (all_j - idle_j) for share in shares)
    return SharedEnergy(seconds, all_j, parts, rule, idle_w)


def _measured_energy(run: StoredRun, begin: int, end: int) -> float | Absent:
    counters = [column for column in run.columns if _is_of_board(column)]
    if not counters:
        return Absent("no board's energy was sampled: add nvml to --metrics")
    total = 0.0
    for column in counters:
        grown = _window(column, begin, end, counter=True).difference
        if isinstance(grown, Absent):
            return grown
        total += grown
    return total


def _busy(run: StoredRun, begin: int, end: int) -> float:
    """Return the integral of busy multiprocessors of the run's own slice; 0 if unknown."""
    of_slice = [c for c in run.columns if c.series.endswith(BUSY) and c.scope == "slice"]
    total = 0.0
    for column in of_slice:
        busy = _window(column, begin, end, counter=False).integral
        total += 0.0 if isinstance(busy, Absent) else busy
    return total


def _is_of_board(column: Column) -> bool:
    return column.source.partition(":")[0] == "nvml" and column.series.endswith(COUNTER)


def _window(column: Column, begin: int, end: int, *, counter: bool) -> Window:
    values = [None if value != value else value for value in column.values.tolist()]
    return over(column.time_ns.tolist(), values, begin, end, counter=counter)
