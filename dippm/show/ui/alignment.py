"""`offsets_s`: the start of each run on the common time axis."""

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
"""Name of the axis whose x is the step that a run reported with its values."""


class RunStart(NamedTuple):
    """Start of a run.

    Attributes:
        run: uuid of the run.
        workload: experiment and workload; the runs of a workload started together.
        wall_ns: nanoseconds since 1970.
    """

    run: str
    workload: tuple[str, str]
    wall_ns: int


def offsets_s(runs: Sequence[RunStart], alignment: Alignment) -> dict[str, float]:
    """Return the offset of the elapsed time of each run in s, by uuid.

    "run" aligns all starts at zero, "workload" the first start of each workload, which keeps the
    distances of its runs; "clock" gives seconds since 1970.
    """
    if alignment == "clock":
        return {run.run: run.wall_ns / 1e9 for run in runs}
    if alignment == "run":
        return {run.run: 0.0 for run in runs}
    first: dict[tuple[str, str], int] = {}
    for run in runs:
        first[run.workload] = min(first.get(run.workload, run.wall_ns), run.wall_ns)
    return {run.run: (run.wall_ns - first[run.workload]) / 1e9 for run in runs}
