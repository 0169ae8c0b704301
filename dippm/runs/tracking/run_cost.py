"""What a tracked command costs beside the same command alone: wall time, processor time, memory.

    python -m dippm.runs.tracking.run_cost WORDS...

runs a command and prints what it cost with all that it started, also with what outlives it: the
process that keeps the run, and then attaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
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
from dippm.runs.tracking.process_supervisor import adopt_orphans, used_s

WALL_S, MEMORY_MB = 1.0, 50.0
"""At most, beside a command of 15 s; radT took 16.5 s and 330 MB."""
CPU_S, CPU_AFTERWARDS_S = 0.6, 1.0
"""At most beside a command of 15 s, and until its run is in a store that was there."""
SHARE = 0.005
"""Of each further second, which is the sampler's target."""
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


class CommandCost(NamedTuple):
    """A command that was run.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: of it and all that it started, until its end.
        cpu_afterwards_s: of the same, until nothing of it is left.
        memory_mb: the most that it and its children had at once, resident.
    """

    wall_s: float
    cpu_s: float
    cpu_afterwards_s: float
    memory_mb: float


def run_cost(
    seconds: float = 15.0, repeats: int = 3, *, progress: Progress = lambda _: None
) -> RunCost:
    """Run `sleep` alone and tracked, in turns; the runs are attached to a store of this moment.

    As ever that is at the lowest priority, which takes long where others are busy, unless
    `DIPPM_ATTACH` is "now".

    Args:
        seconds: that it sleeps.
        repeats: of each.
        progress: told in words what is going on.

    Raises:
        MeasurementError: if the tracked command fails, or its run does not come into the store.
        StoreError: if no store can be made; `StoreNotInstalledError` without MLflow.
    """
    from dippm.runs.store.attach import MARK
    from dippm.runs.store.runs import open_store

    load = os.getloadavg()[0]
    words = ["sleep", f"{seconds:g}"]
    pairs = []
    with tempfile.TemporaryDirectory(prefix="dippm-run-cost-") as place:
        progress("making a store")
        spool, store = Path(place) / "spool", Path(place) / "runs.db"
        open_store(str(store))
        # Runs of others shall not keep this one's from being attached.
        ours = {"DIPPM_SPOOL": str(spool), "DIPPM_LIVE": f"{place}/live"}
        environment = {**os.environ, **ours, "MLFLOW_TRACKING_URI": str(store)}
        for repeat in range(1, repeats + 1):
            progress(f"alone, {repeat} of {repeats}")
            alone = measure_command(words, environment)
            progress(f"tracked, {repeat} of {repeats}")
            tracked = measure_command(
                [sys.executable, "-m", "dippm", "run", "--", *words], environment
            )
            pairs.append((alone, tracked))
        if len(list(spool.glob(f"*/{MARK}"))) < repeats:
            hint = "`dippm run -- true`, then `dippm runs --attach`, says why."
            raise MeasurementError("not every run came into the store", hint)
    longer_s = SHARE * max(0.0, seconds - 15)

    def more(name: str) -> list[float]:
        return [getattr(tracked, name) - getattr(alone, name) for alone, tracked in pairs]

    figures = (
        figure("wall time of a tracked command", "s", more("wall_s"), WALL_S),
        figure("CPU time beside it", "s", more("cpu_s"), CPU_S + longer_s),
        figure(
            "CPU time until it is attached",
            "s",
            more("cpu_afterwards_s"),
            CPU_AFTERWARDS_S + longer_s,
        ),
        figure("memory beside it", "MiB", more("memory_mb"), MEMORY_MB),
    )
    return RunCost(seconds, figures, load)


def measure_command(words: list[str], environment: dict[str, str]) -> CommandCost:
    """Run a command below a process that becomes the parent of all that the command leaves behind.

    Raises:
        MeasurementError: if it fails.
    """
    watch = [sys.executable, "-m", "dippm.runs.tracking.run_cost", *words]
    done = subprocess.run(watch, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        hint = "Run it by hand to see why."
        raise MeasurementError(f"{' '.join(words)} ended with exit code {done.returncode}", hint)
    return CommandCost(**json.loads(done.stdout))


def watch(words: list[str]) -> tuple[CommandCost, int]:
    """Run a command, look at its processes ten times a second, and wait until all have ended.

    Call it in a process of its own, with no other children.

    Returns:
        What it cost, and its exit code.
    """
    adopt_orphans()
    start = time.monotonic()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    memory_mb = 0.0
    while True:
        try:
            code = child.wait(EACH_S)
            break
        except subprocess.TimeoutExpired:
            tree = descendants(os.getpid()) - {os.getpid()}
            memory_mb = max(memory_mb, sum(map(_resident_mb, tree)))
    wall_s = time.monotonic() - start
    left = descendants(os.getpid()) - {os.getpid()}
    cpu_s = sum(map(used_s, left)) + _reaped_s()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return CommandCost(wall_s, cpu_s, _reaped_s(), memory_mb), code


def _reaped_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended, or is another user's
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss:")), 0.0)


def main(words: list[str]) -> int:
    """Watch a command and print what it cost as JSON; return its exit code."""
    found, code = watch(words)
    print(json.dumps(found._asdict()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
