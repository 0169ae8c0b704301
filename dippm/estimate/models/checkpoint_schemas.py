"""Schemas of the `config.json` and `metrics.json` of a checkpoint, checked once when they are read.

A checkpoint can come from anybody. A schema here names every key that a predictor reads, with its
type and range; further keys are allowed, since a card may say more than a predictor needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dippm.devices import MemoryFamily
from dippm.devices.hosts import KindOfBoard
from dippm.errors import CheckpointError
from dippm.estimate.conditions import Mode, Phase, Precision, SoftwareClass, Timer
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.intervals import FEATURES as INTERVAL_FEATURES
from dippm.estimate.models.intervals import FEWEST_FEATURES, GROUPS, SEEN, UNSEEN
from dippm.estimate.models.power import SHARES
from dippm.estimate.models.targets import TARGETS

DAMAGED = "Restore the checkpoint's folder from its release."


class Schema(BaseModel):
    """A part of a checkpoint: types as they are written, and no number that is not finite."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


class ClosedSchema(Schema):
    """A part whose keys become arguments, so it has no others."""

    model_config = ConfigDict(extra="forbid")


def check(document: Mapping[str, Any], schema: type[Schema], what: str) -> None:
    """Check a document against its schema.

    Raises:
        CheckpointError: that names up to three places that are wrong.
    """
    try:
        schema.model_validate(json.loads(json.dumps(document)))  # tuples count as lists
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in found[:3]]
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        raise CheckpointError(f"{what} is damaged: {'; '.join(places)}{more}", DAMAGED) from None


def _rising(bounds: list[int]) -> list[int]:
    if bounds[0] > bounds[1]:
        raise ValueError("the first bound is above the second")
    return bounds


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name has characters that cannot be printed")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Range = Annotated[list[Count], Field(min_length=2, max_length=2), AfterValidator(_rising)]
LogError = Annotated[float, Field(ge=0, le=20)]
LogFactor = Annotated[float, Field(ge=-20, le=20)]
EffectUnit = Literal["half", "tf32", "fp32", "bytes"]
LogRange = Annotated[list[LogFactor], Field(min_length=2, max_length=2)]
Target = Literal["latency_ms", "memory_mb", "power_w", "energy_j"]
Names = list[Name]
Text = str | list[str]


class Head(Schema):
    """What every `config.json` has; the rest depends on the kind."""

    kind: Name
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    name: Name | None = None
    version: Name | None = None
    graph_version: Name | None = None
    feature_version: Name | None = None
    card: dict[str, Text] = Field(default_factory=dict)


class HostPart(ClosedSchema):
    """Arguments of `Host`."""

    launch_ms: Annotated[float, Field(ge=0, le=1e6)]
    copy_bytes_per_ms: Annotated[float, Field(gt=0, le=1e15)]


class MemoryPart(ClosedSchema):
    """Arguments of `MemoryModel`."""

    context_mb: Annotated[float, Field(ge=0, le=1e7)]
    context_mb_per_sm: Annotated[float, Field(ge=0, le=1e4)]
    convolution_mb: Annotated[float, Field(ge=0, le=1e7)]
    log_error: LogError
    software: dict[SoftwareClass, Annotated[float, Field(ge=0, le=1e7)]] | None = None
    default: SoftwareClass | Literal[""] = ""
    class_sd_mb: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    unknown_sd_mb: Annotated[float, Field(ge=0, le=1e7)] = 0.0

    @model_validator(mode="after")
    def _knows_its_default(self) -> Self:
        if self.software is not None and self.default not in self.software:
            raise ValueError("the default is none of the classes of software")
        return self


class PowerPart(ClosedSchema):
    """Arguments of `PowerModel`."""

    floor: Annotated[float, Field(ge=0, le=100)]
    coefficients: Annotated[
        list[Annotated[float, Field(ge=0, le=1e3)]],
        Field(min_length=len(SHARES), max_length=len(SHARES)),
    ]
    sharpness: Annotated[float, Field(ge=0.5, le=50)]
    log_error: LogError
    waiting_share: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    silicon_exponent: Annotated[float, Field(ge=0, le=2)] = 0.0


class IntervalPart(ClosedSchema):
    """Arguments of `IntervalLaw`."""

    coefficients: Annotated[
        list[LogFactor], Field(min_length=FEWEST_FEATURES, max_length=len(INTERVAL_FEATURES))
    ]
    quantile: dict[str, Annotated[float, Field(ge=0, le=1e3)]]

    @model_validator(mode="after")
    def _has_every_group(self) -> Self:
        if not {SEEN, UNSEEN} <= set(self.quantile) <= set(GROUPS):
            raise ValueError(f"quantile wants {' and '.join(GROUPS)}")
        return self


class HybridIntervals(Schema):
    """How wide intervals are."""

    latency_ms: IntervalPart


class HybridSeen(Schema):
    """What was measured."""

    devices: dict[str, Names]
    often: dict[str, Names]
    batch_range: Range
    kernel_classes: Names


class TableTerms(Schema):
    """What a table of measurements adds to the shared law."""

    device: Name
    mode: Mode
    terms: dict[Name, LogFactor]


class GpuUnits(Schema):
    """How much slower the units of a GPU run than the law of all GPUs says."""

    device: Name
    mode: Mode
    units: dict[EffectUnit, dict[Name, LogFactor]]


class MemoryUnits(Schema):
    """The same of GPUs with a kind of memory, for those that were not measured."""

    memory: MemoryFamily | Literal["any"]
    mode: Mode
    units: dict[EffectUnit, dict[Name, LogFactor]]


class EffectSpread(Schema):
    """Standard deviations of effects, log; of these levels an answer does not know its own."""

    source: LogError
    source_class: LogError
    laboratory: LogError


class GpuHead(Schema):
    """A GPU with weights of its own in the last layer of the networks."""

    device: Name
    mode: Mode


class ResidualRows(Schema):
    """Rows whose residuals speak for a GPU under some conditions."""

    device: Name
    mode: Mode
    precision: Precision
    channels_last: bool
    rows: Count


class TreeLawPart(Schema):
    """Shape of the trees of inference, and what bounds them."""

    tree_depth: Annotated[int, Field(ge=1, le=64)]
    tree_reach: LogError
    range: dict[Name, LogRange]
    tables: list[TableTerms] | None = None
    usual: dict[MemoryFamily | Literal["any"], dict[Mode, dict[Name, LogFactor]]] | None = None
    effects: list[GpuUnits] | None = None
    default_effects: list[MemoryUnits] | None = None
    effect_spread: EffectSpread | None = None
    laboratories: dict[KindOfBoard, LogFactor] = {}
    kernel_timer: LogFactor = 0.0

    @model_validator(mode="after")
    def _has_effects(self) -> Self:
        if (self.effects is None) == (self.tables is None):
            raise ValueError("give effects of GPUs, or terms of their tables")
        if (self.effects is None) != (self.effect_spread is None):
            raise ValueError("effects have a spread between laboratories")
        if (self.effects is None) != (self.default_effects is None) or (
            (self.tables is None) != (self.usual is None)
        ):
            raise ValueError("there is nothing for GPUs that were not measured")
        return self

    @model_validator(mode="after")
    def _has_every_class(self) -> Self:
        missing = sorted(set(KERNEL_CLASSES) - set(self.range))
        if missing:
            raise ValueError(f"range has no {missing[0]}")
        if any(low > high for low, high in self.range.values()):
            raise ValueError("range: the first bound is above the second")
        return self


class LawPart(TreeLawPart):
    """Shape of the law of inference, and what bounds it."""

    members: Annotated[int, Field(ge=1, le=64)]
    network_weight: Annotated[float, Field(ge=0, le=1)]
    residuals: list[ResidualRows] = []
    heads: list[GpuHead] | None = None
    measured_gpus: Names = []


class HybridSchema(Schema):
    """What the kind "hybrid" reads."""

    law: LawPart
    host: HostPart
    memory: MemoryPart
    power: PowerPart
    intervals: HybridIntervals
    seen: HybridSeen


class PmgnsSwitches(ClosedSchema):
    """Arguments of `PmgnsConfig`; one that is missing has its default."""

    gnn: Name = "sage"
    targets: Annotated[list[Target], Field(min_length=1, max_length=len(TARGETS))] = ["memory_mb"]
    hidden: Annotated[int, Field(ge=1, le=1 << 14)] = 512
    layers_per_block: Annotated[int, Field(ge=1, le=64)] = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    edges: Literal["dataflow", "chain"] = "dataflow"
    nodes: Literal["all", "var_only"] = "all"
    shape: Literal["output", "weight"] = "output"
    static_order: Literal["eq1", "code"] = "eq1"
    l2_normalise: bool = True
    readout: Literal["sum", "mean"] = "mean"
    target_space: Literal["log", "raw"] = "log"
    loss: Literal["huber", "mse"] = "huber"
    precisions: list[Precision] = []


class PmgnsConditions(Schema):
    """What was measured, and nothing else is answered."""

    devices: Annotated[Names, Field(min_length=1)]
    precision: list[Precision]
    mode: list[Mode]
    timer: list[Timer]
    channels_last: list[bool]
    autograd: Annotated[list[bool], Field(min_length=1)] = [False]


class Residual(Schema):
    """Quantiles of the log error of one target."""

    coverage: Annotated[float, Field(gt=0, lt=1)]
    low: Annotated[float, Field(ge=-20, le=20)]
    high: Annotated[float, Field(ge=-20, le=20)]
    upper_99: Annotated[float, Field(ge=-20, le=20)]

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class PmgnsSeen(Schema):
    """What was trained on."""

    operators: Names
    batch: Range
    nodes: Range


class PmgnsSchema(Schema):
    """What the kind "pmgns" reads."""

    graph_version: Name
    network: PmgnsSwitches
    conditions: PmgnsConditions
    residuals: dict[Target, Residual]
    seen: PmgnsSeen
    absent: dict[str, str] = Field(default_factory=dict)


Scalar = str | bool | int | float | None
Row = dict[str, Scalar | list[Scalar]]


class SummaryRow(Schema):
    """One line of the accuracy table."""

    n: Annotated[int, Field(ge=0)] | None = None
    median_ape: Annotated[float, Field(ge=0)] | None = None
    mape: Annotated[float, Field(ge=0)] | None = None


class MetricsSchema(Schema):
    """`metrics.json`: a title and its table, list or text; "summary" is the accuracy table."""

    __pydantic_extra__: dict[str, Row | list[Row] | list[str] | str | None]
    summary: list[SummaryRow] = []


# Schema of the `config.json` of a checkpoint for training steps; see `checkpoint_schemas`.


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
    forward_as_inference: bool = False


class StepMemoryPart(MemoryPart):
    """Arguments of `StepMemoryModel`."""

    spread: Annotated[float, Field(ge=1, le=10)]


LaunchWeight = Annotated[float, Field(gt=0, le=100)]


class LaunchWeights(ClosedSchema):
    """Host time of the parts of a training step, in launches of inference."""

    forward: LaunchWeight
    later: LaunchWeight
    layer: LaunchWeight


class StepPart(ClosedSchema):
    """What was measured of training steps."""

    launches: LaunchWeights


class EarlierStepPart(ClosedSchema):
    """`StepPart` of a checkpoint before hybrid-gpu-train 0.11.0."""

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
    step: StepPart | EarlierStepPart
