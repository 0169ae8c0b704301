"""Which runs of a store shared a device, which ran alone, and which did the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dippm.runs.store.record import Span
    from dippm.runs.store.stored import StoredRun

PROFILED = "profiled"
Stretch = tuple[int, int]
"""From when to when, ns on the monotonic clock of the machine."""


def neighbours_of(run: StoredRun, runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    """Return the runs that shared a device with a run for a while, in the order of their start.

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
    """Whether a run had its devices for itself, as far as the store and its own tags tell."""
    tags = run.start.tags
    return (
        tags.get("seats", "1") == "1"
        and tags.get("neighbours", "none") == "none"
        and tags.get("sharing", "none") == "none"
        and not tags.get("beside")
        and not neighbours_of(run, runs)
    )


def same_work(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs did the same on the same machine: command, params and host."""
    mine, theirs = run.start, other.start
    return (mine.command, dict(mine.params), mine.host) == (
        theirs.command,
        dict(theirs.params),
        theirs.host,
    )


def counts(run: StoredRun) -> bool:
    """Whether the times of a run count: it ended well, and nothing was profiled in it."""
    return run.status == "finished" and PROFILED not in run.start.tags


def stretch(run: StoredRun) -> Stretch:
    """Return from when to when a run went."""
    return run.start.at.monotonic_ns, run.end.at.monotonic_ns


def shared_time(run: StoredRun, neighbours: Sequence[StoredRun]) -> tuple[Stretch, ...]:
    """Return the stretches of a run in which at least one neighbour ran, in order."""
    first, last = stretch(run)
    merged: list[Stretch] = []
    for begin, end in sorted(map(stretch, neighbours)):
        begin, end = max(begin, first), min(end, last)
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def spans_within(spans: Iterable[Span], stretches: Sequence[Stretch]) -> tuple[Span, ...]:
    """Return the spans that lie wholly in one of several stretches."""
    return tuple(
        span
        for span in spans
        if span.end_ns is not None
        and any(begin <= span.start_ns and span.end_ns <= end for begin, end in stretches)
    )


def _devices(run: StoredRun) -> frozenset[str]:
    named = run.start.tags.get("devices", "").replace(",", "+").split("+")
    return frozenset(part.strip() for part in named if part.strip(" -")) or frozenset({""})


def _may_overlap(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs overlap by the wall clock; it spares reading the record of most."""
    mine, theirs = (
        (each.wall_ns, each.wall_ns + round(each.seconds * 1e9)) for each in (run, other)
    )
    return mine[0] < theirs[1] and theirs[0] < mine[1]
