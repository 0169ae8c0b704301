"""The overhead of tracking a command: wall time, CPU time and memory.

    python -m dippm.runs.tracking.run_cost WORDS...

runs a command and prints its cost including all its descendants, also the sidecar that outlives it
and attaches the run.
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
from dippm.measure.selftest import Figure, figure
from dippm.measure.sources.tree import descendants
from dippm.runs.tracking.process_supervisor import adopt_orphans, used_s

WALL_S, MEMORY_MB = 1.0, 50.0
"""Limits for a command of 15 s; radT took 16.5 s and 330 MB."""
CPU_S, CPU_AFTERWARDS_S = 0.6, 1.0
"""Limits for a command of 15 s, and until its run is in an existing store."""
SHARE = 0.005
"""CPU limit for each further second: the sampler's target."""
EACH_S = 0.1
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunCost:
    """The overhead of tracking a command that sleeps.

    Attributes:
        seconds: duration of the sleep.
        figures: overheads, each with its verdict.
        load: load of the machine before.
    """

    seconds: float
    figures: tuple[Figure, ...]
    load: float

    @property
    def ok(self) -> bool:
        """Whether every figure meets its target."""
        return not any(each.verdict == "above" for each in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        figures = [asdict(each) for each in self.figures]
        return {"ok": self.ok, "seconds": self.seconds, "figures": figures, "load": self.load}


class CommandCost(NamedTuple):
    """The cost of a command.

    Attributes:
        wall_s: wall time from start to end.
        cpu_s: CPU time of it and its descendants until its end.
        cpu_afterwards_s: CPU time of the same processes until all have ended.
        memory_mb: peak resident memory of it and its descendants together.
    """

    wall_s: float
    cpu_s: float
    cpu_afterwards_s: float
    memory_mb: float


def run_cost(
    seconds: float = 15.0, repeats: int = 3, *, progress: Progress = lambda _: None
) -> RunCost:
    """Run `sleep` alone and tracked, in turns; the runs are attached to a temporary store.

    Attaching runs at the lowest priority, as always, which takes long on a busy machine unless
    `DIPPM_ATTACH` is "now".

    Args:
        seconds: duration of the sleep.
        repeats: number of repetitions of each.
        progress: called with a line of text at each stage.

    Raises:
        MeasurementError: if the tracked command fails, or its run does not reach the store.
        StoreError: if no store can be created; `StoreNotInstalledError` without MLflow.
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
        # A spool and live lock of its own: runs of others must not delay the attaching.
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
    """Measure a command in a subprocess that adopts all orphans of the command.

    Raises:
        MeasurementError: if the command fails.
    """
    watch = [sys.executable, "-m", "dippm.runs.tracking.run_cost", *words]
    done = subprocess.run(watch, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        hint = "Run it by hand to see why."
        raise MeasurementError(f"{' '.join(words)} ended with exit code {done.returncode}", hint)
    return CommandCost(**json.loads(done.stdout))


def watch(words: list[str]) -> tuple[CommandCost, int]:
    """Run a command, sample its processes ten times a second, and wait until all have ended.

    Call it in a process without other children.

    Returns:
        The cost and the exit code.
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
    """Measure a command and print its cost as JSON; return its exit code."""
    found, code = watch(words)
    print(json.dumps(found._asdict()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
