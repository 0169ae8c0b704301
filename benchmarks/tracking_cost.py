"""What tracking costs: a call, an import, a short command. CPU time unless it says wall.

python -m benchmarks.tracking_cost [--seconds 15] [--calls 20000]
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
}
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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dippm-cost-") as folder:
        os.environ |= {"DIPPM_SPOOL": folder, "DIPPM_ATTACH": "no"}
        found = {**calls(Path(folder), given.calls), **inside(), **command(given.seconds)}
    print(f"{'':34}{'measured':>10}{'limit':>8}{'ratio':>8}")
    for name, value in found.items():
        limit = LIMITS.get(name)
        rest = f"{limit:8g}{value / limit:8.2f}" if limit else ""
        print(f"{name:34}{value:10.3f}{rest}")


def calls(folder: Path, count: int) -> dict[str, float]:
    from dippm.store.folder import RunFolder
    from dippm.store.record import Moment, Start
    from dippm.tracking import Run, tracked
    from dippm.tracking.run import enter, leave

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
    return {
        "import in the workload, CPU ms": milliseconds,
        "memory in the workload, MB": megabytes,
    }


def command(seconds: float) -> dict[str, float]:
    from dippm.tracking.run_cost import run_cost

    wall, cpu, memory = run_cost(seconds, repeats=1).figures
    return {
        "sleep, wall s": wall.mean,
        "sleep, CPU s beside": cpu.mean,
        "sleep, memory beside MB": memory.mean,
    }


if __name__ == "__main__":
    main()
