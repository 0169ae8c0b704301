"""Schema of the `config.json` of a checkpoint for training steps; see `checkpoint_schemas`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dippm.estimate.conditions import Phase
from dippm.estimate.models.checkpoint_schemas import (
    ClosedSchema,
    HostPart,
    HybridIntervals,
    HybridSeen,
    LogError,
    LogFactor,
    MemoryPart,
    Name,
    PowerPart,
    Schema,
    TreeLawPart,
)


class Multipliers(ClosedSchema):
    """Log slow-down by part of a training step and class of kernels."""

    forward: dict[Name, LogFactor]
    backward_input: dict[Name, LogFactor]
    backward_weight: dict[Name, LogFactor]
    optimizer: dict[Name, LogFactor]


class StepLawPart(TreeLawPart):
    """Shape of the law of training steps."""

    step_depth: Annotated[int, Field(ge=1, le=64)]
    step_reach: LogError
    multipliers: Multipliers


class StepMemoryPart(MemoryPart):
    """Arguments of `StepMemoryModel`."""

    spread: Annotated[float, Field(ge=1, le=10)]


class StepPart(ClosedSchema):
    """What was measured of training steps."""

    launch_share: Annotated[float, Field(gt=0, le=10)]


class PhasePart(Schema):
    """What is answered."""

    phase: list[Phase]


class StepSchema(Schema):
    """What the kind "hybrid" reads of a checkpoint for training steps."""

    conditions: PhasePart
    law: StepLawPart
    host: HostPart
    memory: StepMemoryPart
    power: PowerPart
    intervals: HybridIntervals
    seen: HybridSeen
    step: StepPart
