"""Jobs over the families: their order and their points.

A campaign may end anywhere, so every prefix is a balanced sample: families take turns, each family
runs through all of its architectures before it repeats one at other sizes, and batches, precisions
and modes follow low-discrepancy sequences. Order and choices come from SHA-256 of the seed, so they
are the same on every machine and version. Torch is not imported.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dataset.families import costs
from dataset.families.family import Family, Workload
from dataset.families.registry import FAMILIES
from dataset.plan.configuration import Job, Point
from dataset.plan.limits import CPU, GPU, largest_batch, seconds
from dippm.estimate.conditions import Precision
from dippm.measure.protocol import Phase

GOLDEN = (math.sqrt(5) - 1) / 2
SILVER = math.sqrt(2) - 1
SHARES: dict[Precision, float] = {
    "fp32": 0.25,
    "tf32": 0.15,
    "fp16": 0.18,
    "bf16": 0.17,
    "amp": 0.15,
    "amp-bf16": 0.10,
}
"""Share of the points at each precision."""
POINTS = (5, 4, 6, 5)
"""Numbers of points per job, in turn."""
ENERGY_SHARE = 0.4
"""Share of points with an energy window, which takes as long as two points without one."""
CHANNELS_LAST_SHARE = 0.3
COMPILED_EVERY = 25
"""One in this many jobs has a compiled point: compiling takes as long as ten points."""
REPEAT_EVERY = 12
"""One in this many jobs repeats earlier points, about 5 % of all, for the noise floor."""


def plan(seed: int = 0) -> list[Job]:
    """Return inference jobs over all families: more than 10,508 graphs."""
    return _interleave(FAMILIES.values(), "inference", seed)


def training_plan(seed: int = 0) -> list[Job]:
    """Return jobs of training steps over all families that train."""
    families = [family for family in FAMILIES.values() if family.trains]
    return _interleave(families, "train", seed)


def cpu_plan(seed: int = 0, points: int = 640) -> list[Job]:
    """Return small single-precision points for two cores, latency and memory only."""
    families = enumerate(_shuffle(FAMILIES.values(), f"{seed}/cpu"))
    queues = [_cpu_queue(family, seed, turn) for turn, family in families]
    jobs: list[Job] = []
    for job in _take_turns(queues):
        if sum(len(j.points) for j in jobs) >= points:
            break
        jobs.append(job)
    return jobs


def again(job: Job, repeat: int) -> Job:
    """Return some of a job's eager points as a repetition."""
    eager = [point for point in job.points if point.mode == "eager"]
    chosen = eager[:: max(1, len(eager) // 3)][:3]
    return Job(job.workload, tuple(replace(point, repeat=repeat) for point in chosen))


def _interleave(families: Iterable[Family], phase: Phase, seed: int) -> list[Job]:
    queues = [
        _queue(family, phase, seed, turn)
        for turn, family in enumerate(_shuffle(families, f"{seed}/{phase}"))
    ]
    return list(_take_turns(queues))


def _take_turns(queues: Sequence[Iterator[Job]]) -> Iterator[Job]:
    """Yield one job of each queue in turn, until all are empty."""
    waiting = list(queues)
    while waiting:
        for queue in list(waiting):
            job = next(queue, None)
            if job is None:
                waiting.remove(queue)
            else:
                yield job


def _queue(family: Family, phase: Phase, seed: int, turn: int) -> Iterator[Job]:
    """Yield a family's jobs, and occasionally a repetition of an earlier one."""
    done: list[Job] = []
    repeated = 0
    drawer = _Drawer(family, phase, seed, turn)
    for i, workload in enumerate(_workloads(family, seed)):
        earlier = repeated // 2 * 5  # used twice: as repetition 1 and later 2
        if earlier < len(done) and (i + turn) % (REPEAT_EVERY - 1) == 0:
            yield again(done[earlier], repeated % 2 + 1)
            repeated += 1
        job = drawer.job(workload)
        if job.points:
            done.append(job)
            yield job


def _workloads(family: Family, seed: int) -> Iterator[Workload]:
    """Yield all architectures at one size each, then all at the next, and so on."""
    members = _shuffle(family.grid(), f"{seed}/{family.name}")
    choices = [(parameters, list(family.sizes(parameters))) for parameters in members]
    for turn in range(max(len(sizes) for _, sizes in choices)):
        for rank, (parameters, sizes) in enumerate(choices):
            if turn < len(sizes):
                yield Workload(family.name, parameters, sizes[(turn + rank) % len(sizes)])


class _Drawer:
    """Draws the points of a family's jobs from sequences that continue across jobs."""

    def __init__(self, family: Family, phase: Phase, seed: int, turn: int) -> None:
        self.family, self.phase, self.turn = family, phase, turn
        self.offset = _unit(seed, family.name, phase)
        self.jobs = self.points = 0

    def job(self, workload: Workload) -> Job:
        cost = costs.cost(workload)
        index, self.jobs = self.jobs, self.jobs + 1
        step_s = GPU.step_s[(index + self.turn) % len(GPU.step_s)]
        least = 2 if self.phase == "train" else 1  # batch norm has no variance over one sample
        fits = largest_batch(cost, self.phase, limits=GPU, step_s=step_s, least=least)
        top = min(self.family.largest_batch, fits)
        count = POINTS[(index + self.turn) % len(POINTS)]
        points = [self._point(batch) for batch in self._batches(least, top, count, index)]
        if points and self.family.compiles and (index + self.turn) % COMPILED_EVERY == 0:
            middle = points[len(points) // 2]
            points.append(replace(middle, mode="compiled", energy=False))
        return Job(workload, tuple(points))

    def _batches(self, low: int, top: int, count: int, index: int) -> list[int]:
        """Return distinct batches, one from each equal part of the logarithmic range."""
        if top < low:
            return []
        shift = (self.offset + index * GOLDEN) % 1
        drawn = [round(low * (top / low) ** ((i + shift) / count)) for i in range(count)]
        even = [2 ** round(math.log2(b)) if i % 2 else b for i, b in enumerate(drawn)]
        return sorted({batch for batch in even if low <= batch <= top})

    def _point(self, batch: int) -> Point:
        index, self.points = self.points, self.points + 1
        image = self.family.images
        return Point(
            batch=batch,
            precision=_precision((self.offset + index * GOLDEN) % 1),
            phase=self.phase,
            channels_last=image and (self.offset + index * SILVER) % 1 < CHANNELS_LAST_SHARE,
            energy=(self.offset + index * math.pi) % 1 < ENERGY_SHARE,
        )


def _precision(position: float) -> Precision:
    total = 0.0
    for precision, share in SHARES.items():
        total += share
        if position < total:
            return precision
    return "fp32"


def _cpu_queue(family: Family, seed: int, turn: int) -> Iterator[Job]:
    done: list[Job] = []
    for i, workload in enumerate(_workloads(family, seed)):
        cost, step_s = costs.cost(workload), CPU.step_s[i % len(CPU.step_s)]
        top = min(4, largest_batch(cost, "inference", limits=CPU, step_s=step_s))
        if not top or seconds(cost, top, "inference", limits=CPU) > max(CPU.step_s):
            continue
        if done and (i + turn) % 10 == 0:
            yield again(done[-1], 1)
        done.append(Job(workload, tuple(Point(b, energy=False) for b in sorted({1, top}))))
        yield done[-1]


def _shuffle(items: Iterable[Any], seed: object) -> list[Any]:
    """Return the items in an order that depends on the seed and their names alone."""
    return sorted(items, key=lambda item: _digest(seed, getattr(item, "name", item)))


def _digest(*keys: object) -> bytes:
    text = json.dumps(keys, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()


def _unit(*keys: object) -> float:
    """Return a number in [0, 1) that depends on the keys alone."""
    return int.from_bytes(_digest(*keys)[:6], "big") / 2**48
