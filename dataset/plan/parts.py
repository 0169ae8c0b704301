"""The parts of the plan by name."""

from __future__ import annotations

from collections.abc import Callable

from dataset.plan.calibration import operator_pack
from dataset.plan.configuration import Job
from dataset.plan.queue import cpu_plan, plan, training_plan

PARTS: dict[str, Callable[[int], list[Job]]] = {
    "operators": lambda seed: operator_pack(),
    "inference": plan,
    "training": training_plan,
    "cpu": cpu_plan,
}


def jobs_of(part: str, seed: int) -> list[Job]:
    """Return a part of the plan; "all" is operators, inference, training, in this order."""
    if part == "all":
        return [
            job for name in ("operators", "inference", "training") for job in jobs_of(name, seed)
        ]
    return PARTS[part](seed)
