"""Expected duration of a job, by the protocol of `dippm.measure` and estimated step times."""

from __future__ import annotations

from dataset.families import costs
from dataset.families.registry import OPERATORS
from dataset.plan.configuration import Job, Point
from dataset.plan.limits import Limits, seconds
from dippm.measure.protocol import Settings

BUILD_S, COMPILE_S = 0.15, 20.0
WARM_UP_S, WARM_UP_STEPS = 0.075, 15
"""Warm-up of three windows: the last two agree even if the first was slow."""
QUEUED_S, KERNELS_S = 0.1, 0.15
"""Steps queued without waiting; a profiled step and its table."""
REST_S = 0.25
"""Overhead of a point: inputs, first call, counters, memory, messages, writing the row."""
ENERGY_REST_S = 0.1


def job_seconds(job: Job, limits: Limits, settings: Settings | None = None) -> float:
    """Return the expected seconds of a job on a device with the rates in `limits`."""
    settings = settings or Settings()
    return BUILD_S + sum(_point_seconds(job, p, limits, settings) for p in job.points)


def _point_seconds(job: Job, point: Point, limits: Limits, settings: Settings) -> float:
    step = seconds(
        costs.cost(job.workload), point.batch, point.phase, limits=limits, precision=point.precision
    )
    warm_up, queued = max(WARM_UP_S, WARM_UP_STEPS * step), max(QUEUED_S, 2 * step)
    timed = settings.timed_steps * step + KERNELS_S
    if job.workload.family in OPERATORS:
        timed *= 2  # with warm and with cold caches
    total = warm_up + timed + queued + REST_S
    if point.energy:
        total += settings.energy_window_s + 2 * settings.idle_s + ENERGY_REST_S
    return total + COMPILE_S * (point.mode == "compiled")
