"""What of a plan has no outcome yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataset.collect.store import Store
from dataset.configuration import Job, Point, configuration_id
from dippm.measure.columns import Status


@dataclass(frozen=True, slots=True)
class Pending:
    """A job with what is left of it.

    Attributes:
        job: as planned.
        points: without an outcome, in order.
        known: statuses of the others.
    """

    job: Job
    points: tuple[Point, ...]
    known: Mapping[Point, Status]


def pending_of(jobs: Sequence[Job], store: Store, *, retry_failed: bool) -> Iterator[Pending]:
    """Yield what has no outcome yet; a point that the plan lists twice is measured once."""
    seen = set()
    for job in jobs:
        known: dict[Point, Status] = {}
        points = []
        for point in job.points:
            key = (configuration_id(job.workload, point), point.repeat)
            status = store.statuses.get(key)
            if status == "ok" or (status is not None and not retry_failed):
                known[point] = status  # type: ignore[assignment]
            elif key not in seen:
                points.append(point)
            seen.add(key)
        if points:
            yield Pending(job, tuple(points), known)
