"""Run a workload, alone or with a sampler, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dippm.errors import MeasurementError
from dippm.measure.sampler_start import SamplerProcess, start
from dippm.measure.selftest.plan import Plan

WORK = """
import sys, time
kind, size = sys.argv[1], float(sys.argv[2])
if kind == "sleep":
    work = lambda: time.sleep(size)
else:
    import numpy
    random = numpy.random.default_rng(0)
    if kind == "sort":
        work = random.random(int(size * 2**20 / 8)).sort
    else:
        a = random.random((int(size), int(size)), dtype=numpy.float32)
        a[:64, :64] @ a[:64, :64]  # starts the library's threads
        work = lambda: a @ a
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
work()
print(time.perf_counter() - start, flush=True)
sys.stdin.readline()
"""
INSIDE = """
import sys, time
def memory_mb():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
memory_mb()
before, begin = memory_mb(), time.process_time()
from dippm.measure.sampler_start import start
sampler = start(sys.argv[1], hz=10)
end, after = time.process_time(), memory_mb()
print((end - begin) * 1e3, after - before)
sampler.stop()
"""
EMPTY = """
import os, select, sys, time
never, _ = os.pipe()
wait_s, end = 1 / float(sys.argv[1]), time.monotonic() + float(sys.argv[2])
before = time.process_time()
while time.monotonic() < end:
    select.select([never], [], [], wait_s)
print(time.process_time() - before)
"""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """A run of a workload; the sampler's values are None if it ran alone."""

    seconds: float
    cpu_percent: float | None = None
    start_ms: float | None = None
    rss_mb: float | None = None
    pss_mb: float | None = None


def run(workload: str, size: float, hz: float, plan: Plan, out: Path) -> WorkloadRun:
    """Run a workload, with a sampler if `hz` is not 0.

    Raises:
        MeasurementError: if the workload or the sampler does not start, or ends early.
    """
    words = [sys.executable, "-c", WORK, workload, repr(size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise MeasurementError(
                f"the workload {workload!r} of size {size:g} did not start",
                "Choose a smaller size.",
            )
        if not hz:
            return WorkloadRun(_go(child))
        sampler = start(out, pid=child.pid, hz=hz, sources=plan.sources, device=plan.device)
        if not sampler.wait_until_ready():
            child.kill()
            raise MeasurementError(
                f"the sampler did not start (exit code {sampler.poll()})",
                "`dippm doctor` lists the sources that work here; name one of them.",
            )
        began, before_s = time.monotonic(), _cpu_s(sampler)
        seconds = _go(child)
        # Too short a workload gives an inexact share: watch its idle process a while longer.
        time.sleep(max(0.0, began + plan.watch_s - time.monotonic()))
        passed, used_s = time.monotonic() - began, _cpu_s(sampler) - before_s
        memory = _memory(sampler)
        sampler.stop()
        return WorkloadRun(seconds, 100 * used_s / passed, 1e3 * before_s, *memory)


def _go(child: subprocess.Popen[str]) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("go\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise MeasurementError("the workload ended early", "Choose a smaller size.")
    return float(answer)


def _cpu_s(sampler: SamplerProcess) -> float:
    return time.clock_gettime((~sampler.pid << 3) | 2)  # its CPU clock, see sources.tree_process


def _memory(sampler: SamplerProcess) -> tuple[float, float]:
    sizes = {}
    for line in Path(f"/proc/{sampler.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) / 1024
    return sizes["Rss"], sizes["Pss"]


def inside(out: Path) -> tuple[float, float]:
    """Return CPU time in ms and memory in MiB that starting a sampler takes of its workload."""
    home = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": home}
    words = [sys.executable, "-c", INSIDE, str(out)]
    answer = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    milliseconds, megabytes = map(float, answer.stdout.split())
    return milliseconds, megabytes


def empty_loop(hz: float, seconds: float) -> float:
    """Return the CPU share, in %, of a Python process that only wakes up: any sampler's floor."""
    words = [sys.executable, "-S", "-c", EMPTY, repr(hz), repr(seconds)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=True)
    return 100 * float(answer.stdout) / seconds
