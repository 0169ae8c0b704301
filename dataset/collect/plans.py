"""The jobs of a campaign: a plan file, a share of the plan, and the pending points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataset.collect.errors import CollectError
from dataset.plan.configuration import Job, Point, configuration_id
from dippm.measure.collected.store import Store
from dippm.measure.columns import Status

TRIES = 3
"""Maximum measurements of a point that is disturbed each time, before it stays without a label."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A job with its pending points.

    Attributes:
        job: the planned job.
        points: points without an outcome, in order.
        known: statuses of the other points.
    """

    job: Job
    points: tuple[Point, ...]
    known: Mapping[Point, Status]


def read_plan(path: Path) -> list[Job]:
    """Return the jobs of a plan file, one `Job.to_dict()` per line.

    Raises:
        CollectError: if it cannot be read, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CollectError(f"plan {path} cannot be read: {error}") from error
    jobs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            jobs.append(Job.from_dict(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise CollectError(
                f"{path}, line {number}: {type(error).__name__}: {error}",
                'A line is {"model": "own:family(name=value)@sizes", "points": [{"batch": 1}]}.',
            ) from error
    return jobs


def share(jobs: Sequence[Job], shard: str) -> list[Job]:
    """Return every n-th job from the i-th on, for a shard "i/n" counted from 1.

    Raises:
        ValueError: if the shard has another form.
    """
    first, _, of = shard.partition("/")
    if not (first.isdigit() and of.isdigit() and 1 <= int(first) <= int(of)):
        raise ValueError(f"{shard!r} is no share such as 1/4, 2/4, 3/4, 4/4")
    return list(jobs[int(first) - 1 :: int(of)])


def plan_hash(jobs: Sequence[Job]) -> str:
    """Return a digest of 16 letters over the jobs and their order."""
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(json.dumps(job.to_dict(), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


def pending_of(jobs: Sequence[Job], store: Store, *, retry_failed: bool) -> Iterator[Pending]:
    """Yield jobs with points that have no outcome, or only disturbed ones, without duplicates."""
    seen = set()
    for job in jobs:
        known: dict[Point, Status] = {}
        points = []
        for point in job.points:
            key = (configuration_id(job.workload, point), point.repeat)
            status = store.statuses.get(key)
            again = retry_failed if status != "ok" else 0 < store.disturbed[key] < TRIES
            if status is not None and not again:
                known[point] = status  # type: ignore[assignment]
            elif key not in seen:
                points.append(point)
            seen.add(key)
        if points:
            yield Pending(job, tuple(points), known)
