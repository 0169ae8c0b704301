"""`offsets_s`: where the clock of each run begins on the common axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Alignment = Literal["run", "workload", "clock"]
AXES: dict[str, str] = {
    "run": "elapsed time of each run (s)",
    "workload": "elapsed time since the first run of the workload began (s)",
    "clock": "time of day (UTC)",
}
STEP = "step"
"""Name of the axis where x is what a run told with its numbers."""


class Begun(NamedTuple):
    """When a run began.

    Attributes:
        run: its uuid.
        workload: it and its experiment; runs of one began together.
        wall_ns: nanoseconds since 1970.
    """

    run: str
    workload: tuple[str, str]
    wall_ns: int


def offsets_s(runs: Sequence[Begun], alignment: Alignment) -> dict[str, float]:
    """Return what is added to the elapsed time of each run, in seconds, by its uuid.

    "run" lays all beginnings on zero, "workload" the first of each workload, which keeps how far
    runs beside each other were apart; "clock" gives seconds since 1970.
    """
    if alignment == "clock":
        return {run.run: run.wall_ns / 1e9 for run in runs}
    if alignment == "run":
        return {run.run: 0.0 for run in runs}
    first: dict[tuple[str, str], int] = {}
    for run in runs:
        first[run.workload] = min(first.get(run.workload, run.wall_ns), run.wall_ns)
    return {run.run: (run.wall_ns - first[run.workload]) / 1e9 for run in runs}
