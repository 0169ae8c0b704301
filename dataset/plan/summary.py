"""What a plan holds, counted, and how long it should take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dataset.families import costs
from dataset.plan.configuration import Job
from dataset.plan.limits import GPU, Limits, seconds

ASSUMED = {"build_s": 0.15, "steps": 50, "energy_s": 2.1, "compile_s": 20.0, "overhead_s": 0.1}
"""Assumptions of the expected time: building a workload, steps with warm-up, an energy window,
compiling, and everything else around a point."""


def summary(jobs: Sequence[Job], limits: Limits = GPU) -> dict[str, Any]:
    """Return counts of a plan: families, architectures, graphs, points and their conditions.

    A graph is a model with its sizes and a batch. The expected time is for a device that sustains
    what `limits` say.
    """
    points = [(job.workload, point) for job in jobs for point in job.points]
    count: Callable[[str], dict[str, int]] = lambda name: dict(  # noqa: E731
        Counter(str(getattr(point, name)) for _, point in points)
    )
    return {
        "jobs": len(jobs),
        "points": len(points),
        "families": len({w.family for w, _ in points}),
        "architectures": len({w.architecture for w, _ in points}),
        "workloads": len({w.model for w, _ in points}),
        "graphs": len({(w.model, p.batch) for w, p in points}),
        "repeats": sum(p.repeat > 0 for _, p in points),
        "energy": sum(p.energy for _, p in points),
        "channels_last": sum(p.channels_last for _, p in points),
        "precisions": count("precision"),
        "modes": count("mode"),
        "phases": count("phase"),
        "by_family": _by_family(jobs),
        "time": _time(jobs, limits),
    }


def text(figures: dict[str, Any]) -> str:
    lines = [f"{'family':<20}{'architectures':>14}{'graphs':>8}{'points':>8}"]
    for name, row in figures["by_family"].items():
        lines.append(f"{name:<20}{row['architectures']:>14}{row['graphs']:>8}{row['points']:>8}")
    plain = [f"{k} {v}" for k, v in figures.items() if isinstance(v, int)]
    lines.append(" · ".join(plain))
    for name in ("precisions", "modes", "phases"):
        lines.append(f"{name}: " + " · ".join(f"{k} {v}" for k, v in figures[name].items()))
    time = figures["time"]
    lines.append(
        f"expected {time['hours']} h, {time['points_per_minute']} points a minute, if "
        + ", ".join(f"{k} {v}" for k, v in time["assumed"].items())
    )
    return "\n".join(lines)


def _by_family(jobs: Sequence[Job]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for name in sorted({job.workload.family for job in jobs}):
        own = [job for job in jobs if job.workload.family == name]
        table[name] = {
            "architectures": len({job.workload.architecture for job in own}),
            "graphs": len({(job.workload.model, p.batch) for job in own for p in job.points}),
            "points": sum(len(job.points) for job in own),
        }
    return table


def _time(jobs: Sequence[Job], limits: Limits) -> dict[str, Any]:
    total = sum(_job_seconds(job, limits) for job in jobs)
    points = sum(len(job.points) for job in jobs)
    device = {"tflops": limits.tflops, "gb_s": limits.gb_s, "launch_us": limits.launch_us}
    return {
        "hours": round(total / 3600, 2),
        "points_per_minute": round(60 * points / max(total, 1e-9), 1),
        "assumed": {**ASSUMED, **device},
    }


def _job_seconds(job: Job, limits: Limits) -> float:
    cost = costs.cost(job.workload)
    total = ASSUMED["build_s"]
    for p in job.points:
        step = seconds(cost, p.batch, p.phase, limits=limits, precision=p.precision)
        total += ASSUMED["overhead_s"] + ASSUMED["steps"] * step
        total += ASSUMED["energy_s"] * p.energy + ASSUMED["compile_s"] * (p.mode == "compiled")
    return total
