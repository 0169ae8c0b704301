"""Energy of runs that share a board: measured for all of them, estimated for each.

A board counts its energy as a whole: what one run took of it cannot be measured. The share is an
estimate by a stated rule, never a measurement, and never a label to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dippm.measure.readings import Absent
from dippm.runs.colocation.together import stretch
from dippm.runs.tracking.window import Window, over

if TYPE_CHECKING:
    from dippm.runs.store.columns import Column
    from dippm.runs.store.stored import StoredRun

COUNTER, BUSY = ".energy_j", ".sm_active_percent"
BY_BUSY = "by the share of busy multiprocessors of each slice"
EQUAL = "in equal parts, since no counter tells the runs apart"


@dataclass(frozen=True, slots=True)
class SharedEnergy:
    """Energy of the boards while all of several runs ran.

    Attributes:
        seconds: for which all of them ran.
        all_j: measured, of the boards, all runs and idling together; or why it is not known.
        estimates_j: of each run, in their order: an estimate; empty if there is none.
        rule: how it was divided.
        idle_w: of the boards together, divided evenly before the rest; None if nobody told.
    """

    seconds: float
    all_j: float | Absent
    estimates_j: tuple[float, ...]
    rule: str
    idle_w: float | None


def shared_energy(runs: Sequence[StoredRun], *, idle_w: float | None = None) -> SharedEnergy:
    """Return the energy of the boards that runs shared, and an estimate of each run's part.

    What is above idle is divided by the integral of busy multiprocessors where each run has those
    of its own slice (NVML's GPM under MIG, Hopper and later), else evenly; idling evenly.

    Args:
        runs: that shared the same devices.
        idle_w: power of the boards while nothing runs, W.
    """
    times = [stretch(run) for run in runs]
    begin, end = max(first for first, _ in times), min(last for _, last in times)
    seconds = max(0.0, (end - begin) / 1e9)
    if not seconds:
        return SharedEnergy(0.0, Absent("they never ran all at once"), (), "", idle_w)
    counted = [_counted(run, begin, end) for run in runs]
    known = [energy for energy in counted if not isinstance(energy, Absent)]
    if not known:
        return SharedEnergy(seconds, counted[0], (), "", idle_w)
    all_j = max(known)  # all read the same boards; one that missed samples has no value
    weights = [_busy(run, begin, end) for run in runs]
    rule = BY_BUSY if all(weights) else EQUAL
    shares = [w / sum(weights) for w in weights] if all(weights) else [1 / len(runs)] * len(runs)
    idle_j = min(all_j, (idle_w or 0.0) * seconds)
    parts = tuple(idle_j / len(runs) + share * (all_j - idle_j) for share in shares)
    return SharedEnergy(seconds, all_j, parts, rule, idle_w)


def _counted(run: StoredRun, begin: int, end: int) -> float | Absent:
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
    """Return the integral of busy multiprocessors of the run's own slice; 0 if it is not known."""
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
