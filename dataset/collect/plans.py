"""Which jobs a campaign runs: parts of the plan, a plan file, a share of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dataset.collect.errors import CollectError
from dataset.configuration import Job

PARTS = ("operators", "inference", "training", "cpu", "all")


def jobs_of(part: str, seed: int) -> list[Job]:
    """Return a part of the plan; "all" is operators, inference, training, in this order."""
    from dataset import plan

    if part == "all":
        return [
            job for name in ("operators", "inference", "training") for job in jobs_of(name, seed)
        ]
    return list(plan.PARTS[part](seed))


def read_plan(path: Path) -> list[Job]:
    """Read a plan file: one `Job.to_dict()` a line.

    Raises:
        CollectError: if it cannot be read; names the line.
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
        ValueError: if it is no such share.
    """
    first, _, of = shard.partition("/")
    if not (first.isdigit() and of.isdigit() and 1 <= int(first) <= int(of)):
        raise ValueError(f"{shard!r} is no share such as 1/4, 2/4, 3/4, 4/4")
    return list(jobs[int(first) - 1 :: int(of)])


def plan_hash(jobs: Sequence[Job]) -> str:
    """Return 16 letters that say which jobs, in which order."""
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(json.dumps(job.to_dict(), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
