"""What the collector measures, in which order.

    python -m dataset.plan --part inference --out plan.jsonl --summary

A plan is a list of jobs: a workload that is built once, and the points at which it is run. Since
nobody knows where a campaign ends, every prefix is a balanced sample: families take turns, each
family shows all of its architectures before it repeats one at other sizes, and batches, precisions
and modes follow low-discrepancy sequences. Order and choices come from SHA-256 of the seed, so
they are the same on every machine and version. Torch is not imported.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dataset.configuration import Job, Point
from dataset.families import costs, operators
from dataset.families.costs import Cost
from dataset.families.family import Family, Parameters, Workload
from dataset.families.registry import FAMILIES
from dippm.conditions import Precision
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
"""Points of a job, in turn."""
ENERGY_SHARE = 0.4
"""Share of the points with an energy window, which takes as long as two points without."""
CHANNELS_LAST_SHARE = 0.3
COMPILED_EVERY = 25
"""One job of so many carries one compiled point: compiling takes as long as ten points."""
REPEAT_EVERY = 12
"""One job of so many repeats earlier points, about 5 % of all, for the noise floor."""
STEP_S = (0.01, 0.02, 0.04, 0.01, 0.06, 0.02, 0.03, 0.2)
"""Longest estimated step of a job, in turn: most are quick, some fill the device."""
CALIBRATION_WITH_POWER = 90
"""So many of the calibration pack; the last ten are bound by their launch."""
CALIBRATION_MODELS = (
    ("resnet", {"block": "bottleneck", "depths": "3-4-6-3", "width": 64}),
    ("mobilenet", {"version": 2, "width": 1.0}),
    ("vit", {"patch": 16, "width": 384, "depth": 12, "heads": 6}),
    ("text_encoder", {"width": 256, "depth": 4}),
    ("rnn", {"cell": "lstm"}),
)
"""Family and some parameters; the first member that has them, at its first size."""


@dataclass(frozen=True)
class Limits:
    """How large a point may be, by estimate.

    Attributes:
        memory_mb: tensors of one step and weights.
        tflops: sustained 10¹² floating-point operations per second in single precision.
        gb_s: sustained memory bandwidth.
        launch_us: host time of one operator.
        step_s: longest steps, in turn.
    """

    memory_mb: float
    tflops: float
    gb_s: float
    launch_us: float
    step_s: tuple[float, ...]


GPU = Limits(memory_mb=45_000, tflops=30, gb_s=1500, launch_us=8, step_s=STEP_S)
CPU = Limits(memory_mb=1500, tflops=0.03, gb_s=6, launch_us=20, step_s=(0.05, 0.15))


def operator_pack() -> list[Job]:
    """Return single operators, forward and then backward; the calibration pack comes first.

    Every twentieth is measured once more at the end, for the noise floor.
    """
    more = operators.more_cases()
    forward = [*calibration_pack(), *(_case_job(c, i) for i, c in enumerate(more))]
    cases = [*operators.calibration_cases(), *more]
    backward = [_case_job(case, i, phase="train") for i, case in enumerate(cases)]
    again = [_again(job, 1) for job in forward[::20]]
    return [*forward, *backward, *again]


def calibration_pack() -> list[Job]:
    """Return the hundred operators and five small models that a GPU is calibrated with.

    Each in single and in half precision, with power for all but the launch-bound ones.
    """
    jobs = [
        Job(
            _workload(case),
            tuple(
                Point(case.batch, precision=precision, energy=i < CALIBRATION_WITH_POWER)
                for precision in ("fp32", "bf16")
            ),
        )
        for i, case in enumerate(operators.calibration_cases())
    ]
    return [*jobs, *map(_calibration_model, CALIBRATION_MODELS)]


def plan(seed: int = 0) -> list[Job]:
    """Return inference jobs over all families: more than 10,508 graphs."""
    return _interleaved(FAMILIES.values(), "inference", seed)


def training_plan(seed: int = 0) -> list[Job]:
    """Return jobs of training steps over all families that train."""
    families = [family for family in FAMILIES.values() if family.trains]
    return _interleaved(families, "train", seed)


def cpu_plan(seed: int = 0, points: int = 400) -> list[Job]:
    """Return small single-precision points for two cores, latency and memory only."""
    families = enumerate(_ordered(FAMILIES.values(), f"{seed}/cpu"))
    queues = [_cpu_queue(family, seed, turn) for turn, family in families]
    jobs: list[Job] = []
    for job in _take_turns(queues):
        if sum(len(j.points) for j in jobs) >= points:
            break
        jobs.append(job)
    return jobs


def _interleaved(families: Iterable[Family], phase: Phase, seed: int) -> list[Job]:
    queues = [
        _queue(family, phase, seed, turn)
        for turn, family in enumerate(_ordered(families, f"{seed}/{phase}"))
    ]
    return list(_take_turns(queues))


def _take_turns(queues: Sequence[Iterator[Job]]) -> Iterator[Job]:
    """Yield one job of each queue in turn, for as long as each lasts."""
    waiting = list(queues)
    while waiting:
        for queue in list(waiting):
            job = next(queue, None)
            if job is None:
                waiting.remove(queue)
            else:
                yield job


def _queue(family: Family, phase: Phase, seed: int, turn: int) -> Iterator[Job]:
    """Yield a family's jobs, and now and then a repetition of one from before."""
    done: list[Job] = []
    repeated = 0
    drawer = _Drawer(family, phase, seed, turn)
    for i, workload in enumerate(_workloads(family, seed)):
        earlier = repeated // 2 * 5  # taken twice: as repetition 1, and later as repetition 2
        if earlier < len(done) and (i + turn) % (REPEAT_EVERY - 1) == 0:
            yield _again(done[earlier], repeated % 2 + 1)
            repeated += 1
        job = drawer.job(workload)
        if job.points:
            done.append(job)
            yield job


def _workloads(family: Family, seed: int) -> Iterator[Workload]:
    """Yield all architectures at one size each, then all at the next, and so on."""
    members = _ordered(family.grid(), f"{seed}/{family.name}")
    choices = [(parameters, list(family.sizes(parameters))) for parameters in members]
    for turn in range(max(len(sizes) for _, sizes in choices)):
        for rank, (parameters, sizes) in enumerate(choices):
            if turn < len(sizes):
                yield Workload(family.name, parameters, sizes[(turn + rank) % len(sizes)])


class _Drawer:
    """Draws the points of one family's jobs; its sequences go on from job to job."""

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


def largest_batch(
    cost: Cost, phase: Phase, *, limits: Limits, step_s: float, least: int = 1
) -> int:
    """Return the largest batch whose step takes at most `step_s` and fits in memory.

    If not even `least` samples are so quick, they may take the longest step of the limits; 0 if
    they are too much for that too.
    """
    copies = 4 if phase == "train" else 1  # gradients and momentum, and one to spare
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
            yield _again(done[-1], 1)
        done.append(Job(workload, tuple(Point(b, energy=False) for b in sorted({1, top}))))
        yield done[-1]


def _again(job: Job, repeat: int) -> Job:
    """Return some of a job's eager points as a repetition."""
    eager = [point for point in job.points if point.mode == "eager"]
    chosen = eager[:: max(1, len(eager) // 3)][:3]
    return Job(job.workload, tuple(replace(point, repeat=repeat) for point in chosen))


def _workload(case: operators.Case) -> Workload:
    return Workload(case.family, case.parameters, case.sizes)


def _case_job(case: operators.Case, index: int, phase: Phase = "inference") -> Job:
    """Return an operator in single precision and one other; every second map channels-last."""
    other = ("bf16", "tf32", "fp16")[index % 3]
    last = case.family == "convolution" and len(case.sizes) == 2 and index % 2 == 1
    points = [
        Point(case.batch, precision, phase=phase, channels_last=last, energy=energy)
        for precision, energy in (("fp32", index % 6 == 0), (other, index % 6 == 3))
    ]
    return Job(_workload(case), tuple(points))


def _calibration_model(row: tuple[str, Parameters]) -> Job:
    family, wanted = FAMILIES[row[0]], row[1]
    member = next(p for p in family.grid() if wanted.items() <= p.items())
    points = tuple(Point(b, precision=precision) for b in (1, 16) for precision in ("fp32", "bf16"))
    return Job(Workload(family.name, member, family.sizes(member)[0]), points)


def _ordered(items: Iterable[Any], seed: object) -> list[Any]:
    """Return the items in an order that depends on the seed and on their names alone."""
    return sorted(items, key=lambda item: _digest(seed, getattr(item, "name", item)))


def _digest(*keys: object) -> bytes:
    text = json.dumps(keys, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()


def _unit(*keys: object) -> float:
    """Return a number in [0, 1) that depends on the keys alone."""
    return int.from_bytes(_digest(*keys)[:6], "big") / 2**48


PARTS: dict[str, Callable[[int], list[Job]]] = {
    "operators": lambda seed: operator_pack(),
    "inference": plan,
    "training": training_plan,
    "cpu": cpu_plan,
}


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


ASSUMED = {"build_s": 0.15, "steps": 50, "energy_s": 2.1, "compile_s": 20.0, "overhead_s": 0.1}
"""Assumptions of the expected time: building a workload, steps with warm-up, an energy window,
compiling, and everything else around a point."""


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


def main() -> None:
    """Write a part of the plan as JSON lines, and print what is in it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", choices=sorted(PARTS), default="inference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, help="only so many jobs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", action="store_true", help="print a table")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    jobs = list(islice(PARTS[arguments.part](arguments.seed), arguments.first))
    if arguments.out:
        lines = (json.dumps(job.to_dict()) + "\n" for job in jobs)
        arguments.out.write_text("".join(lines), encoding="utf-8")
    figures = summary(jobs, CPU if arguments.part == "cpu" else GPU)
    if arguments.json:
        print(json.dumps(figures))
    elif arguments.summary:
        print(_render(figures))


def _render(figures: dict[str, Any]) -> str:
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


if __name__ == "__main__":
    main()
