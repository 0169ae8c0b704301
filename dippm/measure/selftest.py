"""What our own sampling costs, measured on this machine.

Workloads run without and with a sampler beside them, in turns, each in a fresh process that works
between two clock readings of its own:

    repetition r:   alone, 10 Hz, 100 Hz     (the order rotates with r)

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

# Two-sided 95 % quantiles of Student's t by degrees of freedom, then the normal one.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14,
           2.13, 2.12, 2.11, 2.10, 2.09, 2.09)  # fmt: skip
NORMAL = 1.96
Verdict = Literal["ok", "above", "undecided", ""]
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
before, begin = memory_mb(), time.perf_counter()
from dippm.measure.sampler_start import start
sampler = start(sys.argv[1], hz=10)
end, after = time.perf_counter(), memory_mb()
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
class Targets:
    """What may not be exceeded.

    Attributes:
        cpu_percent: of one core, by rate in Hz.
        rss_mb: resident memory of the sampler.
        slow_down_percent: of a workload; exceeded when the whole confidence interval lies above.
        inside_mb: memory that starting the sampler takes inside the workload.
        inside_ms: and time.
    """

    cpu_percent: dict[float, float] = field(default_factory=lambda: {10.0: 0.5, 100.0: 1.0})
    rss_mb: float = 20.0
    slow_down_percent: float = 1.0
    inside_mb: float = 10.0
    inside_ms: float = 50.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How the self-test works.

    Attributes:
        sleep_s: length of the workload "sleep".
        sort_mb: size of the array that "sort" sorts.
        matmul: size of the square matrix that "matmul" multiplies with itself.
        repeats: repetitions of everything.
        rates_hz: rates to test.
        sources: names of the sources that are sampled.
        device: NVML index or UUID for sources of a GPU.
        watch_s: the sampler's CPU time is taken over so long at least.
    """

    sleep_s: float = 5.0
    sort_mb: float = 128.0
    matmul: int = 2000
    repeats: int = 5
    rates_hz: tuple[float, ...] = (10.0, 100.0)
    sources: tuple[str, ...] = ("tree",)
    device: str = "0"
    watch_s: float = 2.0

    def workloads(self) -> dict[str, float]:
        """Return name and size; a size of 0 leaves a workload out."""
        sizes = {"sleep": self.sleep_s, "sort": self.sort_mb, "matmul": float(self.matmul)}
        return {name: size for name, size in sizes.items() if size > 0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity of the sampler.

    Attributes:
        what: in words.
        unit: of the numbers.
        mean: over the repetitions.
        low, high: 95 % confidence interval of the mean; None after a single repetition.
        count: how many repetitions.
        target: upper limit, None if there is none.
        verdict: "undecided" if the interval of a slow-down holds the target; empty without target.
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
    """What the self-test found; `ok` if nothing is above its target."""

    figures: tuple[Figure, ...]
    plan: Plan
    machine: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every figure keeps its target."""
        return not any(figure.verdict == "above" for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        figures = [asdict(figure) for figure in self.figures]
        return {
            "ok": self.ok,
            "figures": figures,
            "plan": asdict(self.plan),
            "machine": self.machine,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """One workload run; the last three are None if it ran alone."""

    seconds: float
    cpu_percent: float | None = None
    rss_mb: float | None = None
    pss_mb: float | None = None


def overhead(
    plan: Plan | None = None,
    targets: Targets | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure what sampling costs.

    Args:
        plan: sizes and repetitions.
        targets: limits.
        progress: told in words what is going on.

    Raises:
        MeasurementError: if a workload or the sampler does not start.
    """
    plan, targets = plan or Plan(), targets or Targets()
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": sys.version.split()[0],
    }
    with tempfile.TemporaryDirectory(prefix="dippm-selftest-") as folder:
        runs = _runs(plan, Path(folder), progress)
        progress("inside a workload")
        inside = [_inside(Path(folder) / f"inside-{n}") for n in range(max(3, plan.repeats))]
    figures = [*_sampler_figures(runs, plan, targets), *_slow_downs(runs, plan, targets)]
    figures += [_empty_loop(hz, max(plan.watch_s, 0.1)) for hz in plan.rates_hz]
    figures.append(
        _figure("time inside the workload", "ms", [i[0] for i in inside], targets.inside_ms)
    )
    figures.append(
        _figure("memory inside the workload", "MiB", [i[1] for i in inside], targets.inside_mb)
    )
    return Report(tuple(figures), plan, machine)


def _runs(
    plan: Plan, folder: Path, progress: Callable[[str], None]
) -> dict[tuple[str, float], list[Run]]:
    """Return the runs by workload and rate; rate 0 is the workload alone."""
    arms = (0.0, *plan.rates_hz)
    found: dict[tuple[str, float], list[Run]] = {}
    for workload, size in plan.workloads().items():
        for repeat in range(plan.repeats):
            for step in range(len(arms)):
                hz = arms[(repeat + step) % len(arms)]
                beside = f"sampled at {hz:g} Hz" if hz else "alone"
                progress(f"{workload}, repetition {repeat + 1} of {plan.repeats}, {beside}")
                out = folder / f"{workload}-{repeat}-{hz:g}"
                found.setdefault((workload, hz), []).append(_run(workload, size, hz, plan, out))
    return found


def _run(workload: str, size: float, hz: float, plan: Plan, out: Path) -> Run:
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
            return Run(_go(child))
        sampler = start(out, pid=child.pid, hz=hz, sources=plan.sources, device=plan.device)
        if not sampler.wait_until_ready():
            child.kill()
            raise MeasurementError(
                f"the sampler did not start (exit code {sampler.poll()})",
                "`dippm doctor` lists the sources that work here; name one of them.",
            )
        began, before_s = time.monotonic(), _cpu_s(sampler)
        seconds = _go(child)
        # A reading of a short workload is a share of little: watch its process idle a while more.
        time.sleep(max(0.0, began + plan.watch_s - time.monotonic()))
        passed, used_s = time.monotonic() - began, _cpu_s(sampler) - before_s
        memory = _memory(sampler)
        sampler.stop()
        return Run(seconds, 100 * used_s / passed, *memory)


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


def _inside(out: Path) -> tuple[float, float]:
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home}
    words = [sys.executable, "-c", INSIDE, str(out)]
    answer = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    milliseconds, megabytes = map(float, answer.stdout.split())
    return milliseconds, megabytes


def _empty_loop(hz: float, seconds: float) -> Figure:
    """Return what a Python process costs that only wakes up: the floor of any sampler here."""
    words = [sys.executable, "-S", "-c", EMPTY, repr(hz), repr(seconds)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=True)
    percent = 100 * float(answer.stdout) / seconds
    return _figure(f"an empty loop at {hz:g} Hz", "% of a core", [percent], None)


def _sampler_figures(
    runs: dict[tuple[str, float], list[Run]], plan: Plan, targets: Targets
) -> Iterator[Figure]:
    for hz in plan.rates_hz:
        sampled = [run for (_, rate), some in runs.items() if rate == hz for run in some]
        cpu = [run.cpu_percent for run in sampled if run.cpu_percent is not None]
        limit = targets.cpu_percent.get(hz)
        yield _figure(f"sampler CPU at {hz:g} Hz", "% of a core", cpu, limit)
    beside = [run for some in runs.values() for run in some]
    rss = [run.rss_mb for run in beside if run.rss_mb is not None]
    pss = [run.pss_mb for run in beside if run.pss_mb is not None]
    yield _figure("sampler resident memory", "MiB", rss, targets.rss_mb)
    yield _figure("sampler memory of its own (PSS)", "MiB", pss, None)


def _slow_downs(
    runs: dict[tuple[str, float], list[Run]], plan: Plan, targets: Targets
) -> Iterator[Figure]:
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


def _figure(what: str, unit: str, values: Sequence[float], target: float | None) -> Figure:
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
