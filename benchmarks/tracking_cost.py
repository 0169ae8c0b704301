"""What tracking costs: a call, an import, a short command, the store. CPU time unless it says wall.

python -m benchmarks.tracking_cost [--seconds 15] [--calls 20000] [--runs 1000]

Of the store all processes count that a command started, also those that go on when it has ended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIMITS = {
    "call without metrics, us": 20.0,
    "call with time, us": 100.0,
    "import in the workload, CPU ms": 50.0,
    "memory in the workload, MB": 10.0,
    "sleep, wall s": 1.0,
    "sleep, memory beside MB": 50.0,
    "tracked command, CPU s more": 0.6,
    "the same and its attaching, CPU s": 1.0,
    "attach a run of many, CPU ms": 20.0,
    "dippm runs, CPU s": 0.3,
}
REAPER = """
import ctypes, os, resource, sys
PR_SET_CHILD_SUBREAPER = 36  # whatever goes on is ours to wait for
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
command = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
ended_s = None
while True:
    try:
        pid, _ = os.wait()
    except ChildProcessError:
        break
    if pid == command:
        ended_s = cpu_s()
print(ended_s, cpu_s())
"""
IMPORT = """
import sys, time
def memory_mb():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"): return int(line.split()[1]) / 1024
memory_mb()
before_mb, before_s = memory_mb(), time.process_time()
import dippm
with dippm.track("x"), dippm.span("y"):
    print(1e3 * (time.process_time() - before_s), memory_mb() - before_mb)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the command that sleeps")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=1000, help="in the store that is listed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dippm-cost-") as folder:
        os.environ |= {"DIPPM_SPOOL": folder, "DIPPM_ATTACH": "no"}
        found = {**calls(Path(folder), given.calls), **inside(), **command(given.seconds)}
    with tempfile.TemporaryDirectory(prefix="dippm-cost-") as folder:
        found |= store(Path(folder), given.seconds, given.runs)
    print(f"{'':34}{'measured':>10}{'limit':>8}{'ratio':>8}")
    for name, value in found.items():
        limit = LIMITS.get(name)
        rest = f"{limit:8g}{value / limit:8.2f}" if limit else ""
        print(f"{name:34}{value:10.3f}{rest}")


def calls(folder: Path, count: int) -> dict[str, float]:
    from dippm.runs.store.folder import RunFolder
    from dippm.runs.store.record import Moment, Start
    from dippm.runs.tracking import Run, tracked
    from dippm.runs.tracking.run import enter, leave

    def nothing() -> None:
        pass

    plain, timed = tracked(nothing), tracked(metrics=["time"])(nothing)
    alone = _us(nothing, count)
    found = {"call outside of a run, us": _us(plain, count) - alone}
    uuid = os.urandom(16).hex()
    run = Run(uuid, RunFolder.create(Start(uuid, "cost", "cost", Moment.now()), folder))
    before = enter(run)
    found["call without metrics, us"] = _us(plain, count) - alone
    found["call with time, us"] = _us(timed, count) - alone
    leave(run, before)
    run.close()
    return found


def _us(function: Callable[[], None], count: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(count):
            function()
        best = min(best, time.process_time() - start)
    return 1e6 * best / count


def inside() -> dict[str, float]:
    rows = []
    for _ in range(5):
        said = subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
        )
        rows.append([float(word) for word in said.stdout.split()])
    milliseconds, megabytes = (min(column) for column in zip(*rows, strict=True))
    return {"import in the workload, CPU ms": milliseconds, "memory in the workload, MB": megabytes}


def command(seconds: float) -> dict[str, float]:
    from dippm.runs.tracking.run_cost import run_cost

    wall, cpu, memory = run_cost(seconds, repeats=1).figures
    return {
        "sleep, wall s": wall.mean,
        "sleep, CPU s beside": cpu.mean,
        "sleep, memory beside MB": memory.mean,
    }


def store(folder: Path, seconds: float, runs: int) -> dict[str, float]:
    """Return what the way into the store costs, with nobody else's run beside it."""
    from tests.run_folders import make_run

    held = {
        **{name: text for name, text in os.environ.items() if name != "DIPPM_ATTACH"},
        "DIPPM_SPOOL": str(folder / "spool"),
        "DIPPM_LIVE": str(folder / "live"),
        "MLFLOW_TRACKING_URI": str(folder / "runs.db"),
    }
    dippm = (sys.executable, "-m", "dippm")
    sleep = ("sleep", f"{seconds:g}")
    used(held, *dippm, "run", "--", "true")  # MLflow makes the tables, once
    alone, _ = used(held, *sleep)
    ended, whole = used(held, *dippm, "run", "--", *sleep)
    listed, _ = used(held, *dippm, "runs", "--json")
    for number in range(runs):
        make_run(folder / "spool", number=number, ticks=50)
    attached, _ = used(held, *dippm, "runs", "--json")
    again, _ = used(held, *dippm, "runs", "--json")
    return {
        "tracked command, CPU s more": ended - alone,
        "the same and its attaching, CPU s": whole - alone,
        "attach a run of many, CPU ms": 1e3 * (attached - listed) / runs,
        "dippm runs, CPU s": again,
    }


def used(held: dict[str, str], *words: str) -> tuple[float, float]:
    """Return CPU seconds of a command and all it started: until it ended, and until all have."""
    said = subprocess.run(
        [sys.executable, "-c", REAPER, *words], capture_output=True, text=True, check=True, env=held
    )
    ended_s, whole_s = said.stdout.split()[-2:]
    return float(ended_s), float(whole_s)


if __name__ == "__main__":
    main()
