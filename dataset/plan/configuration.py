"""`Point` and `Job`: the units of a plan."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from dataset.families.family import Workload
from dippm.estimate.conditions import Mode, Precision
from dippm.measure.protocol import Phase


@dataclass(frozen=True, slots=True)
class Point:
    """The conditions of one run of a workload.

    Attributes:
        batch: samples per step.
        precision: precision as in `dippm.estimate.conditions`.
        mode: "eager" or "compiled".
        phase: "inference" or "train".
        channels_last: whether the memory layout of images is channels-last.
        energy: whether it has an energy window; without one, energy is absent.
        repeat: number of the repetition for the noise floor; 0 for the original.
    """

    batch: int
    precision: Precision = "fp32"
    mode: Mode = "eager"
    phase: Phase = "inference"
    channels_last: bool = False
    energy: bool = True
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One workload, built once, with its points in the order in which they are measured."""

    workload: Workload
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a line in a plan file."""
        return {"model": self.workload.model, "points": [asdict(point) for point in self.points]}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Job:
        """Return the job from the result of `to_dict`."""
        points = tuple(Point(**point) for point in document["points"])
        return cls(Workload.parse(document["model"]), points)


def configuration_id(workload: Workload, point: Point) -> str:
    """Return an id of 16 letters, shared by repeats only; `energy` is ignored."""
    asked = {k: v for k, v in asdict(point).items() if k not in ("energy", "repeat")}
    text = json.dumps([workload.model, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
