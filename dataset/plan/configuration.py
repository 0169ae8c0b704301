"""`Point` and `Job`: what the plan asks the collector for."""

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
    """How a workload is run.

    Attributes:
        batch: samples per step.
        precision: as in `dippm.estimate.conditions`.
        mode: "eager" or "compiled".
        phase: "inference" or "train".
        channels_last: memory layout of images.
        energy: whether the energy window is spent on it; without, energy is absent.
        repeat: 0, or which repetition for the noise floor.
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
        """Return what a line of a plan file holds."""
        return {"model": self.workload.model, "points": [asdict(point) for point in self.points]}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Job:
        """Read what `to_dict` returned."""
        points = tuple(Point(**point) for point in document["points"])
        return cls(Workload.parse(document["model"]), points)


def configuration_id(workload: Workload, point: Point) -> str:
    """Return 16 letters that repeats share and nothing else does; `energy` does not count."""
    asked = {k: v for k, v in asdict(point).items() if k not in ("energy", "repeat")}
    text = json.dumps([workload.model, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
