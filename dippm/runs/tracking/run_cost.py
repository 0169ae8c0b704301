"""What a tracked command costs beside the same command alone: wall time, processor time, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dippm.errors import MeasurementError
from dippm.measure.selftest.figures import Figure, figure
from dippm.measure.sources.tree import descendants

WALL_S, MEMORY_MB = 1.0, 50.0
"""At most, beside a command of 15 s; radT took 16.5 s and 330 MB."""
EACH_S = 0.1
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunCost:
    """What tracking a command that sleeps costs.

    Attributes:
        seconds: that it sleeps.
        figures: each with its verdict.
        load: of the machine, before.
    """

    seconds: float
    figures: tuple[Figure, ...]
    load: float

    @property
    def ok(self) -> bool:
        """Whether every figure keeps its target."""
        return not any(each.verdict == "above" for each in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        figures = [asdict(each) for each in self.figures]
        return {"ok": self.ok, "seconds": self.seconds, "figures": figures, "load": self.load}


class Watched(NamedTuple):
    """A command that was run.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: of it and its children.
        memory_mb: the most that it and its children had at once, resident.
    """

    wall_s: float
    cpu_s: float
    memory_mb: float


def run_cost(
    seconds: float = 15.0, repeats: int = 3, *, progress: Progress = lambda _: None
) -> RunCost:
    """Run `sleep` alone and tracked, in turns.

    Args:
        seconds: that it sleeps.
        repeats: of each.
        progress: told in words what is going on.

    Raises:
        MeasurementError: if the tracked command fails.
    """
    load = os.getloadavg()[0]
    words = ["sleep", f"{seconds:g}"]
    pairs = []
    with tempfile.TemporaryDirectory(prefix="dippm-run-cost-") as spool:
        environment = {**os.environ, "DIPPM_SPOOL": spool, "DIPPM_ATTACH": "no"}
        for repeat in range(1, repeats + 1):
            progress(f"alone, {repeat} of {repeats}")
            alone = watched(words, environment)
            progress(f"tracked, {repeat} of {repeats}")
            tracked = watched([sys.executable, "-m", "dippm", "run", "--", *words], environment)
            pairs.append((alone, tracked))
    walls = [tracked.wall_s - alone.wall_s for alone, tracked in pairs]
    cpus = [tracked.cpu_s - alone.cpu_s for alone, tracked in pairs]
    memories = [tracked.memory_mb - alone.memory_mb for alone, tracked in pairs]
    figures = (
        figure("wall time of a tracked command", "s", walls, WALL_S),
        figure("CPU time beside it", "s", cpus, None),
        figure("memory beside it", "MiB", memories, MEMORY_MB),
    )
    return RunCost(seconds, figures, load)


def watched(words: list[str], environment: dict[str, str]) -> Watched:
    """Run a command and look at its processes ten times a second.

    Raises:
        MeasurementError: if it fails.
    """
    before, start = os.times(), time.monotonic()
    child = subprocess.Popen(words, env=environment)
    memory_mb = 0.0
    while True:
        try:
            code = child.wait(EACH_S)
            break
        except subprocess.TimeoutExpired:
            tree = {child.pid, *descendants(child.pid)}
            memory_mb = max(memory_mb, sum(map(_resident_mb, tree)))
    wall_s, after = time.monotonic() - start, os.times()
    if code:
        hint = "Run it by hand to see why."
        raise MeasurementError(f"{' '.join(words)} ended with exit code {code}", hint)
    used = [after.children_user - before.children_user, after.children_system]
    return Watched(wall_s, sum(used) - before.children_system, memory_mb)


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended, or is another user's
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss:")), 0.0)
