"""Counts and the expected duration of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dataset.plan.campaign import Stage
from dataset.plan.configuration import Job
from dataset.plan.limits import GPU, Limits
from dataset.plan.time import job_seconds
from dippm.measure.protocol import Settings

DEFAULTS = Settings()


def summary(
    jobs: Sequence[Job], limits: Limits = GPU, settings: Settings = DEFAULTS
) -> dict[str, Any]:
    """Return counts of a plan: families, architectures, graphs, points and their conditions.

    A graph is a model with its sizes and a batch. The expected time is for a device with the rates
    in `limits`.
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
        "time": _time(jobs, limits, settings),
    }


def text(figures: dict[str, Any]) -> str:
    """Return the summary as text."""
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


def _time(jobs: Sequence[Job], limits: Limits, settings: Settings) -> dict[str, Any]:
    total = sum(job_seconds(job, limits, settings) for job in jobs)
    points = sum(len(job.points) for job in jobs)
    device = {"tflops": limits.tflops, "gb_s": limits.gb_s, "launch_us": limits.launch_us}
    return {
        "hours": round(total / 3600, 2),
        "points_per_minute": round(60 * points / max(total, 1e-9), 1),
        "assumed": {"energy_window_s": settings.energy_window_s, **device},
    }


def stage_table(found: Sequence[Stage], limits: Limits = GPU, settings: Settings = DEFAULTS) -> str:
    """Return a table line per stage: points, points with energy, start time, rate."""
    heads = ("stage", "jobs", "points", "energy", "begins, min", "takes, min", "points/min")
    rows: list[tuple[str, ...]] = [heads]
    begin_s = 0.0
    for stage in found:
        points = [point for job in stage.jobs for point in job.points]
        took_s = sum(job_seconds(job, limits, settings) for job in stage.jobs)
        energy = sum(point.energy for point in points)
        counts = (stage.name, len(stage.jobs), len(points), energy)
        times = (begin_s / 60, took_s / 60, 60 * len(points) / took_s)
        rows.append((*map(str, counts), *(f"{value:.1f}" for value in times)))
        begin_s += took_s
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    rule = "|".join(["---", *["---:"] * (len(heads) - 1)])
    return "\n".join(f"| {line} |" for line in lines).replace("\n", f"\n|{rule}|\n", 1)
