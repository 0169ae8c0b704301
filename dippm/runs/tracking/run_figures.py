"""The cost of the steps of a run: latency, memory and energy, each a value or a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dippm.measure.readings import Absent
from dippm.runs.tracking.steps import Steps

if TYPE_CHECKING:
    from dippm.runs.store.columns import Column

BUSY = 0.95
"""Least share of the time between the first and the last step that steps must take: otherwise the
energy of the gaps would be attributed to them."""
LEAST_UPDATES = 10
"""Least number of updates of an energy counter, as in `dippm.measure.energy`."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The cost of one step of a run.

    Attributes:
        timer: kind of time of the latency, "wall" or "event".
        latency_ms: mean time of the timed steps.
        memory_mb: peak memory of the process tree, in MiB.
        energy_j: gross energy of one step.
        power_w: mean power over the steps.
        methods: origin of each value, by its name.
    """

    timer: str
    latency_ms: float
    memory_mb: float | Absent
    energy_j: float | Absent
    power_w: float | Absent
    methods: Mapping[str, str]


def figures_of(steps: Steps, columns: Iterable[Column], *, timer: str, on_gpu: bool) -> RunFigures:
    """Return the cost of one step.

    Args:
        steps: timed steps, see `timed_steps`.
        columns: series of the run.
        timer: "wall" or "event".
        on_gpu: whether the work ran on a GPU.
    """
    series = {column.series: column for column in columns}
    memory = "nvml_processes.tree_memory_mb" if on_gpu else "tree.rss_mb"
    counter = "nvml.energy_j" if on_gpu else "rapl.package_energy_j"
    memory_mb = _most(series.get(memory), memory)
    if not on_gpu:
        memory_mb = _of_one_process(memory_mb, series.get("tree.processes"))
    energy_j = _energy(series.get(counter), counter, steps)
    window_s = (steps.end_ns - steps.start_ns) / 1e9
    power_w = (
        energy_j if isinstance(energy_j, Absent) else energy_j * len(steps.times_ms) / window_s
    )
    times = steps.event_ms if timer == "event" else steps.times_ms
    return RunFigures(
        timer,
        sum(times) / len(times),
        memory_mb,
        energy_j,
        power_w,
        {
            "latency_ms": f"mean of {len(times)} spans {steps.name!r}, {steps.warm_up} before them "
            "are warm-up",
            "memory_mb": f"most of {memory} in the run",
            "energy_j": f"{counter} over these spans",
        },
    )


def _most(column: Column | None, name: str) -> float | Absent:
    source = name.partition(".")[0]
    if column is None:
        return Absent(f"{name} was not sampled: add {source} to --metrics")
    values = [value for value in column.values.tolist() if value == value]
    if not values:
        return Absent(column.reasons[-1][1] if column.reasons else f"{name} has no value")
    return float(max(values))


def _of_one_process(memory_mb: float | Absent, processes: Column | None) -> float | Absent:
    if processes is None or isinstance(memory_mb, Absent):
        return memory_mb
    most = max((value for value in processes.values.tolist() if value == value), default=1)
    if most > 1:
        return Absent(f"the run had {most:.0f} processes at once, and one is predicted")
    return memory_mb


def _energy(column: Column | None, name: str, steps: Steps) -> float | Absent:
    """Return energy per step, from the counter's updates during the steps."""
    if column is None:
        return Absent(f"{name} was not sampled: add {name.partition('.')[0]} to --metrics")
    pairs = zip(column.time_ns.tolist(), column.values.tolist(), strict=True)
    there = [(at, value) for at, value in pairs if value == value]
    if not there:
        return Absent(column.reasons[-1][1] if column.reasons else f"{name} has no value")
    if steps.busy < BUSY:
        return Absent(f"steps take {steps.busy:.0%} of the time between them, {BUSY:.0%} is needed")
    inside = [(at, value) for at, value in there if steps.start_ns <= at <= steps.end_ns]
    updates = [later for sooner, later in pairwise(inside) if later[1] != sooner[1]]
    if len(updates) <= LEAST_UPDATES:
        return Absent(f"{name} was updated {len(updates)} times during the steps, too few")
    (first_ns, first_j), (last_ns, last_j) = updates[0], updates[-1]
    power_w = (last_j - first_j) / ((last_ns - first_ns) / 1e9)
    return float(power_w * (steps.end_ns - steps.start_ns) / 1e9 / len(steps.times_ms))
