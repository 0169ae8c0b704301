"""Measure the overhead of our own sampling on this machine.

Workloads run without and with a sampler in turns, each in a fresh process that measures its own
time between two clock readings:

    repetition r:   of each workload: alone, 10 Hz, 100 Hz     (the order rotates with r)

A slow-down is the mean of the ratios within a repetition, on a log scale, with the 95 % confidence
interval of Student's t. The sampler's CPU time is the kernel's account of its process, from its
first reading to its last.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dippm.errors import MeasurementError
from dippm.measure.selftest.figures import Report, figure, sampler_figures, slow_downs
from dippm.measure.selftest.plan import Plan, Targets
from dippm.measure.selftest.workloads import WorkloadRun, empty_loop, inside, run

Progress = Callable[[str], None]


def overhead(
    plan: Plan | None = None,
    targets: Targets | None = None,
    *,
    progress: Progress = lambda _: None,
) -> Report:
    """Measure the overhead of sampling.

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
        runs, repeats = _runs(plan, folder, progress)
        progress("inside a workload")
        taken = [inside(folder / f"inside-{number}") for number in range(max(3, plan.repeats))]
    figures = [*sampler_figures(runs, plan, targets), *slow_downs(runs, plan, targets)]
    for hz in plan.rates_hz:
        progress(f"an empty loop at {hz:g} Hz")
        percent = empty_loop(hz, max(plan.watch_s, 0.1))
        figures.append(figure(f"an empty loop at {hz:g} Hz", "% of a core", [percent], None))
    times_ms, sizes_mb = zip(*taken, strict=True)
    figures.append(figure("CPU time inside the workload", "ms", times_ms, targets.inside_ms))
    figures.append(figure("memory inside the workload", "MiB", sizes_mb, targets.inside_mb))
    return Report(tuple(figures), plan, machine, repeats)


def _runs(
    plan: Plan, folder: Path, progress: Progress
) -> tuple[dict[tuple[str, float], list[WorkloadRun]], int]:
    """Return the runs by workload and rate (0: alone), and the number of repetitions."""
    arms = (0.0, *plan.rates_hz)
    found: dict[tuple[str, float], list[WorkloadRun]] = {}
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
            left = _left(plan, repeat, turns[number:], took_s, began)
            beside = f"sampled at {hz:g} Hz" if hz else "alone"
            at = f"step {repeat * len(turns) + number + 1} of {plan.repeats * len(turns)}"
            progress(f"{at}{left}: {workload}, {beside}")
            start, out = time.monotonic(), folder / f"{workload}-{repeat}-{hz:g}"
            size = plan.workloads()[workload]
            found.setdefault((workload, hz), []).append(run(workload, size, hz, plan, out))
            took_s[workload, hz] = time.monotonic() - start
    return found, plan.repeats


def _left(
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
