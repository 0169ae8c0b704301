"""The order of a campaign on a GPU: stages, each of which is useful if it is the last.

    ceilings → known → families → operators → training → repeats → drift → rest

A machine may be taken away at any time. So the first minutes measure its peak rates, then come
well-known architectures, then a few members of every family, operators, and training steps. Repeats
for the noise floor follow a hundred jobs after the original, in another process. The rest takes
turns: 70 % models, 20 % training steps, 10 % operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dataset.families import costs, operator_cases
from dataset.families.family import Workload
from dataset.families.registry import ZOO
from dataset.plan.calibration import case_job, operator_pack, workload_of
from dataset.plan.configuration import Job, Point, configuration_id
from dataset.plan.limits import GPU, seconds
from dataset.plan.queue import again, plan, training_plan
from dataset.plan.time import job_seconds
from dippm.estimate.conditions import Precision
from dippm.measure.protocol import Settings

HALF_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16")
KNOWN_BATCHES = (1, 8, 64)
KNOWN_PRECISIONS: tuple[Precision, ...] = ("fp32", "amp")
"""Precisions of most published measurements."""
ARCHITECTURES, POINTS = 4, 2
"""Architectures of each family and points of each, before any family has more."""
OPERATORS = 250
LONG_ENOUGH_S = 20e-6
"""Minimum estimated time of an operator; shorter ones measure the launch."""
TRAINING_ARCHITECTURES = 2
ENERGY_EVERY = 4
"""One in this many points of families, operators and training steps has an energy window."""
REPEAT_EVERY_OPERATOR = 20
SHARES = {"models": 0.7, "training": 0.2, "operators": 0.1}
"""Shares of the points in the rest."""
COMPILED_AFTER_S = 1800.0
"""Start of compiled points: compiling takes as long as ten points."""
QUICK = Settings(energy_window_s=1.0)
"""Settings with short windows, for the most points in the first half hour."""


@dataclass(frozen=True)
class Stage:
    """A part of the campaign that is useful by itself."""

    name: str
    jobs: tuple[Job, ...]


def stages(seed: int = 0) -> list[Stage]:
    """Return the stages in order, without duplicates of a configuration and repeat."""
    models, training = plan(seed), training_plan(seed)
    first = {
        "ceilings": ceilings(),
        "known": known_architectures(),
        "families": _some_of_each(models, ARCHITECTURES, POINTS),
        "operators": long_operators(),
        "training": _some_of_each(training, TRAINING_ARCHITECTURES, 1),
    }
    first["repeats"] = list(_repeats(first))
    first["drift"] = [again(job, 1) for job in first["ceilings"]]
    seen: set[tuple[str, int]] = set()
    found = [Stage(name, tuple(_unseen(jobs, seen))) for name, jobs in first.items()]
    sure = (job for stage in found if stage.name != "known" for job in stage.jobs)
    spent_s = sum(job_seconds(job, GPU, QUICK) for job in sure)
    left = {"models": models, "training": training, "operators": operator_pack()}
    rest = _in_shares({name: _unseen(jobs, seen) for name, jobs in left.items()})
    return [*found, Stage("rest", tuple(_compiled_later(rest, spent_s)))]


def campaign(seed: int = 0) -> list[Job]:
    """Return the jobs of all stages."""
    return [job for stage in stages(seed) for job in stage.jobs]


def ceilings() -> list[Job]:
    """Return the peak operators: the largest products and copies, with energy.

    Rows with an energy window also contain the idle power and the cost of reading counters.
    """
    product, copy = operator_cases.ceiling_cases()
    precisions: tuple[Precision, ...] = ("fp32-ieee", "tf32", *HALF_PRECISIONS)
    return [
        Job(workload_of(product), tuple(Point(product.batch, precision=p) for p in precisions)),
        Job(workload_of(copy), tuple(Point(copy.batch, precision=p) for p in ("fp32", "fp16"))),
    ]


def known_architectures() -> list[Job]:
    """Return the architectures of the zoos at three batches and two precisions.

    Half of the points have energy, so that each architecture, batch and precision has some.
    """
    workloads = [w for family in ZOO.values() for w in costs.workloads(family)]
    return [Job(workload, tuple(_known_points(i))) for i, workload in enumerate(workloads)]


def long_operators() -> list[Job]:
    """Return operators of sufficient duration, each in one precision, then some in another."""
    cases = [*operator_cases.calibration_cases(), *operator_cases.more_cases()]
    bounds = operator_cases.ceiling_cases()
    long = [c for c in cases if c not in bounds and _seconds(c) > LONG_ENOUGH_S]
    jobs = [case_job(case, i) for i, case in enumerate(long)]
    rounds = (
        Job(job.workload, (job.points[(i + turn) % len(job.points)],))
        for turn in range(2)
        for i, job in enumerate(jobs)
    )
    return [_with_energy(job, i) for i, job in enumerate(islice(rounds, OPERATORS))]


def _seconds(case: operator_cases.Case) -> float:
    cost = costs.cost(workload_of(case))
    work = seconds(cost, case.batch, "inference", limits=GPU)
    return work - seconds(cost, 0, "inference", limits=replace(GPU, gb_s=float("inf")))


def _known_points(index: int) -> Iterator[Point]:
    for i, batch in enumerate(KNOWN_BATCHES):
        for j, precision in enumerate(KNOWN_PRECISIONS):
            yield Point(batch, precision=precision, energy=(index + i + j) % 2 == 0)


def _some_of_each(jobs: Iterable[Job], architectures: int, points: int) -> list[Job]:
    """Return the first architectures of each family in turn, with their extreme batches."""
    taken: dict[str, list[Workload]] = {}
    chosen: list[Job] = []
    for job in jobs:
        mine = taken.setdefault(job.workload.family, [])
        eager = [p for p in job.points if p.mode == "eager" and not p.repeat]
        if len(mine) < architectures and eager:
            mine.append(job.workload)
            ends = (eager[-1:] + eager[:-1])[:points]  # the largest, then the smallest
            chosen.append(_with_energy(Job(job.workload, tuple(ends)), len(chosen)))
    return chosen


def _with_energy(job: Job, index: int) -> Job:
    """Return the job with an energy window on one in every few points."""
    first = index * len(job.points)
    points = (
        replace(point, energy=(first + i) % ENERGY_EVERY == 0) for i, point in enumerate(job.points)
    )
    return Job(job.workload, tuple(points))


def _repeats(done: Mapping[str, Sequence[Job]]) -> Iterator[Job]:
    """Return repeats of each known model and family, and of some operators."""
    middle = len(KNOWN_BATCHES) // 2 * len(KNOWN_PRECISIONS)
    for i, job in enumerate(done["known"]):
        point = job.points[middle + i % len(KNOWN_PRECISIONS)]
        yield Job(job.workload, (replace(point, repeat=1),))
    families = {job.workload.family: job for job in reversed(done["families"])}
    chosen = [*families.values(), *done["operators"][::REPEAT_EVERY_OPERATOR]]
    for job in chosen:
        yield Job(job.workload, (replace(job.points[0], repeat=1),))


def _unseen(jobs: Iterable[Job], seen: set[tuple[str, int]]) -> Iterator[Job]:
    """Yield the jobs with only the points that did not occur before."""
    for job in jobs:
        points = []
        for point in job.points:
            key = configuration_id(job.workload, point), point.repeat
            if key not in seen:
                seen.add(key)
                points.append(point)
        if points:
            yield Job(job.workload, tuple(points))


def _in_shares(queues: Mapping[str, Iterator[Job]]) -> Iterator[Job]:
    """Yield jobs so that each queue has about its share of the points in every prefix."""
    waiting, done = dict(queues), dict.fromkeys(queues, 0)
    while waiting:
        name = min(waiting, key=lambda name: done[name] / SHARES[name])
        job = next(waiting[name], None)
        if job is None:
            del waiting[name]
        else:
            done[name] += len(job.points)
            yield job


def _compiled_later(jobs: Iterable[Job], spent_s: float) -> Iterator[Job]:
    """Yield the jobs, with compiled points deferred until the first half hour has passed."""
    waiting: list[Job] = []
    for job in jobs:
        if spent_s < COMPILED_AFTER_S:
            compiled = tuple(p for p in job.points if p.mode == "compiled")
            if compiled:
                waiting.append(Job(job.workload, compiled))
                job = replace(job, points=tuple(p for p in job.points if p.mode != "compiled"))
            spent_s += job_seconds(job, GPU, QUICK)
        else:
            yield from waiting
            waiting = []
        if job.points:
            yield job
    yield from waiting
