"""Single operators, and the calibration pack of operators and small models for a GPU."""

from __future__ import annotations

from dataset.families import operator_cases
from dataset.families.family import Parameters, Workload
from dataset.families.registry import FAMILIES
from dataset.plan.configuration import Job, Point
from dataset.plan.queue import again
from dippm.estimate.conditions import Precision
from dippm.measure.protocol import Phase

CALIBRATION_WITH_POWER = 90
"""Operators of the calibration pack with power; the last ten are launch-bound."""
BOTH: tuple[Precision, ...] = ("fp32", "bf16")
"""Precisions of the calibration pack."""
OTHERS: tuple[Precision, ...] = ("bf16", "tf32", "fp16")
CALIBRATION_MODELS: tuple[tuple[str, Parameters], ...] = (
    ("resnet", {"block": "bottleneck", "depths": "3-4-6-3", "width": 64}),
    ("mobilenet", {"version": 2, "width": 1.0}),
    ("vit", {"patch": 16, "width": 384, "depth": 12, "heads": 6}),
    ("text_encoder", {"width": 256, "depth": 4}),
    ("rnn", {"cell": "lstm"}),
)
"""Family and some parameters, for its first member with these, at its first size."""


def operator_pack() -> list[Job]:
    """Return single operators, forward and then backward, the calibration pack first.

    Every twentieth is repeated at the end, for the noise floor.
    """
    more = operator_cases.more_cases()
    forward = [*calibration_pack(), *(case_job(c, i) for i, c in enumerate(more))]
    cases = [*operator_cases.calibration_cases(), *more]
    backward = [case_job(case, i, phase="train") for i, case in enumerate(cases)]
    repeated = [again(job, 1) for job in forward[::20]]
    return [*forward, *backward, *repeated]


def calibration_pack() -> list[Job]:
    """Return the calibration pack of a GPU: a hundred operators and five small models.

    Each in single and half precision, with power for all but the launch-bound ones.
    """
    jobs = [
        Job(
            workload_of(case),
            tuple(
                Point(case.batch, precision=precision, energy=i < CALIBRATION_WITH_POWER)
                for precision in BOTH
            ),
        )
        for i, case in enumerate(operator_cases.calibration_cases())
    ]
    return [*jobs, *map(_calibration_model, CALIBRATION_MODELS)]


def workload_of(case: operator_cases.Case) -> Workload:
    """Return the workload of an operator."""
    return Workload(case.family, case.parameters, case.sizes)


def case_job(case: operator_cases.Case, index: int, phase: Phase = "inference") -> Job:
    """Return an operator's job in single and another precision; every second map channels-last."""
    other = OTHERS[index % len(OTHERS)]
    last = case.family == "convolution" and len(case.sizes) == 2 and index % 2 == 1
    chosen: tuple[tuple[Precision, bool], ...] = (("fp32", index % 6 == 0), (other, index % 6 == 3))
    points = [
        Point(case.batch, precision, phase=phase, channels_last=last, energy=energy)
        for precision, energy in chosen
    ]
    return Job(workload_of(case), tuple(points))


def _calibration_model(row: tuple[str, Parameters]) -> Job:
    family, wanted = FAMILIES[row[0]], row[1]
    member = next(p for p in family.grid() if wanted.items() <= p.items())
    points = tuple(Point(b, precision=precision) for b in (1, 16) for precision in BOTH)
    return Job(Workload(family.name, member, family.sizes(member)[0]), points)
