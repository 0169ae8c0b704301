"""The parts of the plan by name."""

from __future__ import annotations

from collections.abc import Callable

from dataset.plan.calibration import operator_pack
from dataset.plan.campaign import campaign
from dataset.plan.configuration import Job
from dataset.plan.queue import cpu_plan, plan, training_plan

PARTS: dict[str, Callable[[int], list[Job]]] = {
    "all": campaign,
    "operators": lambda seed: operator_pack(),
    "inference": plan,
    "training": training_plan,
    "cpu": cpu_plan,
}
