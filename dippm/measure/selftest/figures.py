"""Figures with intervals and verdicts from runs of the self-test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dippm.measure.selftest.plan import Plan, Targets
from dippm.measure.selftest.workloads import WorkloadRun

_QUANTILES = (
    "12.71 4.30 3.18 2.78 2.57 2.45 2.36 2.31 2.26 2.23 "
    "2.20 2.18 2.16 2.14 2.13 2.12 2.11 2.10 2.09 2.09"
)
STUDENT = tuple(map(float, _QUANTILES.split()))
"""Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond them the normal one."""
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
        target: upper limit, None for none.
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
        machine: cores, load before, Python.
        repeats: number of repetitions that were run; fewer than planned if time was short.
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


def sampler_figures(
    runs: dict[tuple[str, float], list[WorkloadRun]], plan: Plan, targets: Targets
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


def slow_downs(
    runs: dict[tuple[str, float], list[WorkloadRun]], plan: Plan, targets: Targets
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
    """Return the figure of repeated values; it exceeds its target if their mean does."""
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
