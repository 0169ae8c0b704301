"""Does anything grow? A run at 100 Hz over a command that starts 200 short processes a second.

    python -m benchmarks.tracking_soak [--minutes 10] [--hz 100] [--rate 200]

Prints the sampler's and the runner's memory and descriptors as it goes, and at the end how many
ticks were taken and how many are marked as missed. Exit code 1 if something grew, or if a tick is
missing without a mark.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dippm.measure.sampler_file import Samples, read

WORK = """
import os, sys, time
seconds, pause_s = float(sys.argv[1]), 1 / float(sys.argv[2])
start = time.monotonic()
count = 0
while (now := time.monotonic()) < start + seconds:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    count += 1
    time.sleep(max(0, start + count * pause_s - time.monotonic()))
print(count, "processes")
"""
GROWTH_MB = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--hz", type=float, default=100.0)
    parser.add_argument("--rate", type=float, default=200.0, help="processes a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dippm-soak-") as folder:
        environment = {**os.environ, "DIPPM_SPOOL": folder, "DIPPM_ATTACH": "no"}
        work = [sys.executable, "-c", WORK, str(60 * given.minutes), str(given.rate)]
        command = [sys.executable, "-m", "dippm", "run", "--hz", str(given.hz), "--", *work]
        with subprocess.Popen(command, env=environment) as runner:
            sizes = _watch(runner, Path(folder), 60 * given.minutes)
        (path,) = Path(folder).glob("*/samples-1.dippm")
        return _judge(sizes, read(path), given.hz)


def _watch(
    runner: subprocess.Popen[bytes], spool: Path, seconds: float
) -> list[tuple[float, float, int]]:
    """Return memory of sampler and runner in MB, and open descriptors of both, over time."""
    found: list[tuple[float, float, int]] = []
    sampler = 0
    while runner.poll() is None:
        time.sleep(max(1.0, seconds / 40))
        files = list(spool.glob("*/samples-1.dippm"))
        if not sampler and files and files[0].stat().st_size:
            sampler = int(read(files[0]).header["own_pid"])
        if not sampler:
            continue
        try:
            row = (_memory_mb(sampler), _memory_mb(runner.pid), _open(sampler) + _open(runner.pid))
        except OSError:
            break
        found.append(row)
        print(
            f"sampler {row[0]:6.2f} MB, runner {row[1]:6.2f} MB, {row[2]} descriptors", flush=True
        )
    return found


def _judge(sizes: list[tuple[float, float, int]], samples: Samples, hz: float) -> int:
    times = samples.series["tree"].time_ns
    end = samples.end or {}
    ticks = (times[-1] - times[0]) * hz / 1e9 + 1
    unmarked = ticks - len(times) - end.get("missed", 0)
    later = sizes[len(sizes) // 4 :]
    grown = [max(row[n] for row in later) - later[0][n] for n in range(3)]
    cpu = 100 * end.get("cpu_s", 0.0) / ((times[-1] - times[0]) / 1e9)
    lost = samples.series["tree"].values["lost_processes"][-1]
    print(
        f"{len(times)} readings, {end.get('missed')} marked as missed, {unmarked:.0f} unmarked; "
        f"sampler {cpu:.2f} % of a core; lost processes {lost}\n"
        f"growth after the first quarter: sampler {grown[0]:.2f} MB, runner {grown[1]:.2f} MB, "
        f"{grown[2]} descriptors"
    )
    return int(grown[0] > GROWTH_MB or grown[1] > GROWTH_MB or abs(unmarked) > 3)


def _memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def _open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


if __name__ == "__main__":
    sys.exit(main())
