"""Size limits of points, by a rough estimate of time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from dataset.families.costs import Cost
from dippm.estimate.conditions import Precision
from dippm.measure.protocol import Phase

STEP_S = (0.01, 0.02, 0.04, 0.01, 0.06, 0.02, 0.03, 0.2)
"""Maximum estimated step time of jobs, in turn: most are short, some fill the device."""


@dataclass(frozen=True)
class Limits:
    """Size limits of points on a device.

    Attributes:
        memory_mb: memory of weights and the tensors of one step.
        tflops: sustained 10¹² floating-point operations per second in single precision.
        gb_s: sustained memory bandwidth.
        launch_us: host time per operator.
        step_s: maximum step times, in turn.
    """

    memory_mb: float
    tflops: float
    gb_s: float
    launch_us: float
    step_s: tuple[float, ...]


GPU = Limits(memory_mb=45_000, tflops=30, gb_s=1500, launch_us=8, step_s=STEP_S)
CPU = Limits(memory_mb=1500, tflops=0.03, gb_s=6, launch_us=20, step_s=(0.05, 0.15))


def largest_batch(
    cost: Cost, phase: Phase, *, limits: Limits, step_s: float, least: int = 1
) -> int:
    """Return the largest batch whose step takes at most `step_s` and fits in memory.

    If even `least` samples take longer, they may take the longest step of the limits; 0 if they
    exceed that too.
    """
    copies = 4 if phase == "train" else 1  # weights, gradients, momentum, and one in reserve
    free = limits.memory_mb - cost.parameters_m * 4 * copies
    each = cost.written_mb * 1.5 if phase == "train" else cost.peak_mb * 2
    by_memory = int(free / max(each, 1e-3))
    fixed = seconds(cost, 0, phase, limits=limits)
    one = seconds(cost, 1, phase, limits=limits)
    by_time = int((step_s - fixed) / max(one - fixed, 1e-9))
    if min(by_memory, by_time) >= least:
        return min(by_memory, by_time)
    longest = seconds(cost, least, phase, limits=limits)
    return least if by_memory >= least and longest <= max(limits.step_s) else 0


def seconds(
    cost: Cost, batch: int, phase: Phase, *, limits: Limits, precision: Precision = "fp32"
) -> float:
    """Return a rough estimate of a step: launches, and arithmetic or memory traffic."""
    faster = {"fp32": 1, "fp32-ieee": 1, "tf32": 4}.get(precision, 8)
    arithmetic = 2e9 * cost.gmacs * batch / (limits.tflops * 1e12 * faster)
    traffic = (3 * cost.written_mb * batch + 4 * cost.parameters_m) * 1e6 / (limits.gb_s * 1e9)
    passes = 3 if phase == "train" else 1
    return passes * (cost.operators * limits.launch_us * 1e-6 + max(arithmetic, traffic))
