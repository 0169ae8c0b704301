"""Self-test of the sampler: its overhead on this machine, compared with targets.

Workloads run alternately without and with a sampler, each in a fresh process that measures its own
time between two clock readings:

    repetition r:   of each workload: alone, 10 Hz, 100 Hz     (the order rotates with r)

A slow-down is the mean of the ratios within a repetition, on a log scale, with the 95 % confidence
interval of Student's t. The sampler's CPU time is the kernel's account of its process, from its
first reading to its last.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dippm.errors import MeasurementError
from dippm.measure.sampler_start import SamplerProcess, start


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes and repetitions of the self-test.

    Attributes:
        sleep_s: duration of the workload "sleep".
        sort_mb: size of the array that "sort" sorts.
        matmul: size of the square matrix that "matmul" multiplies with itself.
        repeats: number of repetitions.
        rates_hz: sampling rates to test.
        sources: names of the sources to sample.
        device: NVML index or UUID for sources of a GPU.
        watch_s: least time over which the sampler's CPU time is measured.
        limit_s: time limit of all repetitions; none starts that would exceed it, except the first.
    """

    sleep_s: float = 5.0
    sort_mb: float = 128.0
    matmul: int = 2000
    repeats: int = 5
    rates_hz: tuple[float, ...] = (10.0, 100.0)
    sources: tuple[str, ...] = ("tree",)
    device: str = "0"
    watch_s: float = 2.0
    limit_s: float = 600.0

    def workloads(self) -> dict[str, float]:
        """Return the size of each workload by name, without those of size 0, which are skipped."""
        sizes = {"sleep": self.sleep_s, "sort": self.sort_mb, "matmul": float(self.matmul)}
        return {name: size for name, size in sizes.items() if size > 0}


@dataclass(frozen=True, slots=True)
class Targets:
    """Upper limits on the overhead of sampling.

    Attributes:
        cpu_percent: CPU share of the sampler in % of one core, by rate in Hz.
        rss_mb: resident memory of the sampler.
        slow_down_percent: slow-down of a workload; exceeded if the whole confidence interval is
            above it.
        start_ms: CPU time of the sampler from its start to its first reading.
        inside_mb: memory that starting the sampler takes inside the workload.
        inside_ms: CPU time that starting the sampler takes inside the workload.
    """

    cpu_percent: dict[float, float] = field(default_factory=lambda: {10.0: 0.5, 100.0: 1.0})
    rss_mb: float = 20.0
    slow_down_percent: float = 1.0
    start_ms: float = 50.0
    inside_mb: float = 10.0
    inside_ms: float = 50.0


FULL = Plan(sleep_s=10.0, sort_mb=1024.0, matmul=10_000)
"""The sizes in the deliverable on UMLAUT's overhead: 10 s, 1 GB, 10,000 rows."""


Progress = Callable[[str], None]


def overhead(
    plan: Plan | None = None, targets: Targets | None = None, *, progress: Progress = lambda _: None
) -> Report:
    """Measure the overhead of sampling and compare it with targets.

    Args:
        plan: sizes and repetitions.
        targets: limits.
        progress: called with a line of text about the current step and the remaining time.

    Raises:
        MeasurementError: if a workload or the sampler does not start, or nothing is to be run.
    """
    plan, targets = plan or Plan(), targets or Targets()
    if not plan.workloads():
        raise MeasurementError("every workload has size 0", "Give one of them a size.")
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": sys.version.split()[0],
    }
    with tempfile.TemporaryDirectory(prefix="dippm-selftest-") as name:
        folder = Path(name)
        runs, repeats = _interleaved_runs(plan, folder, progress)
        progress("inside a workload")
        taken = [
            _cost_inside(folder / f"inside-{number}") for number in range(max(3, plan.repeats))
        ]
    figures = [*_sampler_figures(runs, plan, targets), *_slow_downs(runs, plan, targets)]
    for hz in plan.rates_hz:
        progress(f"an empty loop at {hz:g} Hz")
        percent = _empty_loop_percent(hz, max(plan.watch_s, 0.1))
        figures.append(figure(f"an empty loop at {hz:g} Hz", "% of a core", [percent], None))
    times_ms, sizes_mb = zip(*taken, strict=True)
    figures.append(figure("CPU time inside the workload", "ms", times_ms, targets.inside_ms))
    figures.append(figure("memory inside the workload", "MiB", sizes_mb, targets.inside_mb))
    return Report(tuple(figures), plan, machine, repeats)


def _interleaved_runs(
    plan: Plan, folder: Path, progress: Progress
) -> tuple[dict[tuple[str, float], list[_WorkloadRun]], int]:
    """Return the runs by workload and rate (0: alone), and the number of repetitions."""
    arms = (0.0, *plan.rates_hz)
    found: dict[tuple[str, float], list[_WorkloadRun]] = {}
    took_s: dict[tuple[str, float], float] = {}
    began = time.monotonic()
    for repeat in range(plan.repeats):
        passed_s = time.monotonic() - began
        if repeat and passed_s + sum(took_s.values()) > plan.limit_s:
            return found, repeat
        turns = [
            (workload, arms[(repeat + step) % len(arms)])
            for workload in plan.workloads()
            for step in range(len(arms))
        ]
        for number, (workload, hz) in enumerate(turns):
            left = _time_left(plan, repeat, turns[number:], took_s, began)
            beside = f"sampled at {hz:g} Hz" if hz else "alone"
            at = f"step {repeat * len(turns) + number + 1} of {plan.repeats * len(turns)}"
            progress(f"{at}{left}: {workload}, {beside}")
            start, out = time.monotonic(), folder / f"{workload}-{repeat}-{hz:g}"
            size = plan.workloads()[workload]
            found.setdefault((workload, hz), []).append(
                _run_workload(workload, size, hz, plan, out)
            )
            took_s[workload, hz] = time.monotonic() - start
    return found, plan.repeats


def _time_left(
    plan: Plan,
    repeat: int,
    turns: list[tuple[str, float]],
    took_s: dict[tuple[str, float], float],
    began: float,
) -> str:
    """Return the remaining time as text, from the last duration of each step."""
    if not repeat:
        return ""
    rest_s = sum(took_s[turn] for turn in turns)
    whole_s = sum(took_s.values())
    until_limit_s = plan.limit_s - (time.monotonic() - began)
    more = min(plan.repeats - repeat - 1, max(0, int((until_limit_s - rest_s) // whole_s)))
    return f", about {max(1, round((rest_s + more * whole_s) / 60))} min left"


# Processes: a workload alone or with a sampler, the cost inside a workload, and an empty loop.


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
class _WorkloadRun:
    """A run of a workload; the sampler's values are None if it ran alone."""

    seconds: float
    cpu_percent: float | None = None
    start_ms: float | None = None
    rss_mb: float | None = None
    pss_mb: float | None = None


def _run_workload(workload: str, size: float, hz: float, plan: Plan, out: Path) -> _WorkloadRun:
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
            return _WorkloadRun(_time_work(child))
        sampler = start(out, pid=child.pid, hz=hz, sources=plan.sources, device=plan.device)
        if not sampler.wait_until_ready():
            child.kill()
            raise MeasurementError(
                f"the sampler did not start (exit code {sampler.poll()})",
                "`dippm doctor` lists the sources that work here; name one of them.",
            )
        began, before_s = time.monotonic(), _sampler_cpu_s(sampler)
        seconds = _time_work(child)
        # Too short a workload gives an inexact share: watch its idle process a while longer.
        time.sleep(max(0.0, began + plan.watch_s - time.monotonic()))
        passed, used_s = time.monotonic() - began, _sampler_cpu_s(sampler) - before_s
        memory = _sampler_memory_mb(sampler)
        sampler.stop()
        return _WorkloadRun(seconds, 100 * used_s / passed, 1e3 * before_s, *memory)


def _time_work(child: subprocess.Popen[str]) -> float:
    """Start the work of a process that is ready; return its duration in s.

    Raises:
        MeasurementError: if the process ends early.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("go\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise MeasurementError("the workload ended early", "Choose a smaller size.")
    return float(answer)


def _sampler_cpu_s(sampler: SamplerProcess) -> float:
    return time.clock_gettime((~sampler.pid << 3) | 2)  # its CPU clock, see sources.tree_process


def _sampler_memory_mb(sampler: SamplerProcess) -> tuple[float, float]:
    """Return the resident and the proportional set size (PSS) in MiB."""
    sizes = {}
    for line in Path(f"/proc/{sampler.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) / 1024
    return sizes["Rss"], sizes["Pss"]


def _cost_inside(out: Path) -> tuple[float, float]:
    """Return the CPU time in ms and memory in MiB that starting a sampler costs its workload."""
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home}
    words = [sys.executable, "-c", INSIDE, str(out)]
    answer = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    milliseconds, megabytes = map(float, answer.stdout.split())
    return milliseconds, megabytes


def _empty_loop_percent(hz: float, seconds: float) -> float:
    """Return the CPU share, in %, of a Python process that only wakes up: any sampler's floor."""
    words = [sys.executable, "-S", "-c", EMPTY, repr(hz), repr(seconds)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=True)
    return 100 * float(answer.stdout) / seconds


# Figures: means over the repetitions with confidence intervals and verdicts.


_QUANTILES = (
    "12.71 4.30 3.18 2.78 2.57 2.45 2.36 2.31 2.26 2.23 "
    "2.20 2.18 2.16 2.14 2.13 2.12 2.11 2.10 2.09 2.09"
)
STUDENT = tuple(map(float, _QUANTILES.split()))
"""Two-sided 95 % quantiles of Student's t for 1 to 20 degrees of freedom; then `NORMAL` is used."""
NORMAL = 1.96
Verdict = Literal["ok", "above", "undecided", ""]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity of the sampler.

    Attributes:
        what: description.
        unit: unit of the numbers.
        mean: mean over the repetitions.
        low, high: 95 % confidence interval of the mean; None after a single repetition.
        count: number of repetitions.
        target: upper limit; None if there is none.
        verdict: "undecided" if the interval of a slow-down contains the target; empty without
            target.
    """

    what: str
    unit: str
    mean: float
    low: float | None
    high: float | None
    count: int
    target: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """The result of the self-test; `ok` if nothing exceeds its target.

    Attributes:
        figures: figures, each with its verdict.
        plan: plan of the self-test.
        machine: number of cores, load average before the self-test, and Python version.
        repeats: number of completed repetitions; fewer than planned if time was short.
    """

    figures: tuple[Figure, ...]
    plan: Plan
    machine: dict[str, Any]
    repeats: int

    @property
    def ok(self) -> bool:
        """Whether every figure meets its target."""
        return not any(each.verdict == "above" for each in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        figures = [asdict(each) for each in self.figures]
        return {
            "ok": self.ok,
            "figures": figures,
            "plan": asdict(self.plan),
            "repeats": self.repeats,
            "machine": self.machine,
        }


def _sampler_figures(
    runs: dict[tuple[str, float], list[_WorkloadRun]], plan: Plan, targets: Targets
) -> Iterator[Figure]:
    """Yield the sampler's own resource use, from runs by workload and rate."""
    for hz in plan.rates_hz:
        sampled = [run for (_, rate), some in runs.items() if rate == hz for run in some]
        cpu = [run.cpu_percent for run in sampled if run.cpu_percent is not None]
        limit = targets.cpu_percent.get(hz)
        yield figure(f"sampler CPU at {hz:g} Hz", "% of a core", cpu, limit)
    beside = [run for some in runs.values() for run in some]
    starts = [run.start_ms for run in beside if run.start_ms is not None]
    yield figure("sampler CPU to its first reading", "ms", starts, targets.start_ms)
    rss = [run.rss_mb for run in beside if run.rss_mb is not None]
    pss = [run.pss_mb for run in beside if run.pss_mb is not None]
    yield figure("sampler resident memory", "MiB", rss, targets.rss_mb)
    yield figure("sampler memory of its own (PSS)", "MiB", pss, None)


def _slow_downs(
    runs: dict[tuple[str, float], list[_WorkloadRun]], plan: Plan, targets: Targets
) -> Iterator[Figure]:
    """Yield the slow-down of each workload, from runs by workload and rate (0: alone)."""
    for workload in plan.workloads():
        for hz in plan.rates_hz:
            pairs = zip(runs[workload, 0.0], runs[workload, hz], strict=True)
            logs = [math.log(sampled.seconds / alone.seconds) for alone, sampled in pairs]
            mean, low, high = interval(logs)
            limit = math.log1p(targets.slow_down_percent / 100)
            above, below = (
                (mean if low is None else low) > limit,
                (mean if high is None else high) <= limit,
            )
            yield Figure(
                f"slow-down of {workload} at {hz:g} Hz",
                "%",
                100 * math.expm1(mean),
                None if low is None else 100 * math.expm1(low),
                None if high is None else 100 * math.expm1(high),
                len(logs),
                targets.slow_down_percent,
                "above" if above else "ok" if below else "undecided",
            )


def figure(what: str, unit: str, values: Sequence[float], target: float | None) -> Figure:
    """Return the figure of repeated values; its verdict is "above" if their mean exceeds it."""
    mean, low, high = interval(values)
    verdict: Verdict = "" if target is None else "above" if mean > target else "ok"
    return Figure(what, unit, mean, low, high, len(values), target, verdict)


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean and its 95 % confidence interval (Student's t); None for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    freedom = len(values) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half
