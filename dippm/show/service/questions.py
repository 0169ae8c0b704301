"""Questions as pydantic models whose fields are the arguments of the public verbs.

Text from outside never becomes a path: devices, checkpoints and models that name files are refused
here, except for a model's path, which `service.py` resolves under its root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictStr,
    ValidationError,
    create_model,
    model_validator,
)

from dippm.estimate.conditions import KINDS, RunOptions, usual_values
from dippm.show.service.errors import BadQuestionError

MOST_POINTS = 2000
"""Largest number of predictions of one question."""
MOST_MODELS = 50
SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_OF_PYDANTIC = re.compile(r"[\[(]|^constrained-")
"""Parts of the place of an error that name a validator, not a field."""
_NO_NAME = re.compile(r"[/\\\x00-\x1f]|\.toml$|^~|^\.")


def _no_path(name: str) -> str:
    if _NO_NAME.search(name):
        raise ValueError("names a file: only names that `dippm devices` and `dippm models` list")
    return name


def _no_truth_value(number: Any) -> Any:
    if isinstance(number, bool):
        raise ValueError("is a truth value, not a number")
    return number


Number = Annotated[float, BeforeValidator(_no_truth_value)]
Text = Annotated[StrictStr, Field(max_length=200)]
Name = Annotated[Text, AfterValidator(_no_path)]
Names = Name | Annotated[list[Name], Field(min_length=1, max_length=100)]
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Batch = Annotated[Whole, Field(ge=1)]
Sizes = Annotated[list[Whole], Field(max_length=64)]


class KeptModel(BaseModel):
    """A model that was uploaded before, and kept."""

    model_config = ConfigDict(extra="forbid")
    sha256: Annotated[StrictStr, Field(pattern=f"^{SHA256.pattern}$")]


class ModelAtPath(BaseModel):
    """A model file or folder under a root of the service."""

    model_config = ConfigDict(extra="forbid")
    path: Annotated[StrictStr, Field(min_length=1, max_length=1000)]


ModelRef = KeptModel | ModelAtPath | Annotated[Text, Field(pattern=r"^[a-z-]+:.+$")]
"""A kept upload, a path, or a name such as "timm:resnet50"."""


class _PredictionFields(BaseModel):
    """Fields of every question in addition to conditions; see `dippm.predict`."""

    model_config = ConfigDict(extra="forbid")

    NAME: ClassVar[str]
    LISTS: ClassVar[tuple[str, ...]] = ()
    """Fields that query parameters give as comma-separated lists."""

    framework: Name | None = None
    input: (
        Annotated[StrictStr, Field(max_length=2000)]
        | Sizes
        | Annotated[list[Sizes | Text], Field(max_length=64)]
        | Annotated[dict[Text, Sizes | Text], Field(max_length=64)]
        | None
    ) = None
    checkpoint: Name | None = None
    timeout_s: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="time limit of the conversion in s; None: that of the service"
    )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the verb, without the models."""
        return self.model_dump(exclude={"model", "models", "timeout_s"})


_FIELDS: Any = {
    name: ({bool: bool, str: Text}[KINDS[name][0]], usual)
    if float not in KINDS[name]
    else (Name | Number | None, usual)
    for name, usual in usual_values(RunOptions).items()
}
if TYPE_CHECKING:
    Conditions = _PredictionFields
else:
    Conditions = create_model(
        "Conditions",
        __base__=_PredictionFields,
        __doc__="Options of every question; see `dippm.predict`.",
        **_FIELDS,
    )


class OneModel(Conditions):
    """A question about one model."""

    model: ModelRef | None = Field(None, description="omitted if the body is the model file")
    precision: Text = "fp32"


class Predict(OneModel):
    """See `dippm.predict`."""

    NAME: ClassVar[str] = "predict"
    batch: Batch = 1
    device: Name = "A100"
    mig: Name | None = None
    tree: bool = Field(False, description="also return the cost of each module")
    html: bool = Field(False, description="also return the answer as an HTML page")


class Fit(OneModel):
    """Whether a model fits, with what margin, and the largest batch that does."""

    NAME: ClassVar[str] = "fit"
    batch: Batch = 1
    device: Name = "A100"
    mig: Name | None = None


class Choose(OneModel):
    """See `dippm.choose`."""

    NAME: ClassVar[str] = "choose"
    LISTS: ClassVar[tuple[str, ...]] = ("devices",)
    devices: Names = "all"
    slices: bool = True
    by: Text = "latency"
    batch: Batch | Text = 1
    slo_ms: Number | None = None
    slo_at: Text = "upper"
    max_memory_mb: Number | None = None
    prices: dict[Text, Any] | None = Field(
        None, description="price per hour by device, or the content of a file of prices"
    )
    dataset_size: Batch | None = None
    carbon: dict[Text, Any] | None = Field(
        None, description="grams of CO2 per kWh by region, or the content of a file of them"
    )
    region: Text | None = None


class Slice(OneModel):
    """The smallest MIG slice, see `dippm.smallest_slice`."""

    NAME: ClassVar[str] = "slice"
    device: Name = "A100"
    batch: Batch = 1
    slo_ms: Number | None = None
    slo_at: Text = "upper"
    max_memory_mb: Number | None = None


class ForScheduler(OneModel):
    """What a scheduler is asked for, see `dippm request`."""

    NAME: ClassVar[str] = "request"
    LISTS: ClassVar[tuple[str, ...]] = ("devices",)
    devices: Names = "A100"
    slices: bool = True
    batch: Batch = 1
    slo_ms: Number | None = None
    probability: Number = 0.95
    format: Name = "k8s"
    name: Name | None = None
    image: Annotated[StrictStr, Field(max_length=500, pattern=r"^[\w./:@-]+$")] = "IMAGE"
    resource: Annotated[StrictStr, Field(max_length=200, pattern=r"^[\w./:-]+$")] | None = None

    @model_validator(mode="after")
    def _serves(self) -> ForScheduler:
        if super().arguments()["autograd"]:
            raise ValueError("autograd: what serves runs under torch.no_grad; ask fit instead")
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the verb, which has no autograd."""
        found = super().arguments()
        found.pop("autograd")
        return found


class Compare(Conditions):
    """See `dippm.compare`."""

    NAME: ClassVar[str] = "compare"
    models: Annotated[list[ModelRef], Field(min_length=1, max_length=MOST_MODELS)]
    device: Names = "A100"
    batch: Batch | Annotated[list[Batch], Field(min_length=1, max_length=64)] = 1
    mig: Name | Annotated[list[Name | None], Field(min_length=1, max_length=20)] | None = None
    precision: Names = "fp32"

    @model_validator(mode="after")
    def _count(self) -> Compare:
        points = len(self.models)
        for several in (self.device, self.batch, self.mig, self.precision):
            points *= len(several) if isinstance(several, list) else 1
        if points > MOST_POINTS:
            raise ValueError(
                f"asks for {points:,} predictions, more than the limit of {MOST_POINTS:,}"
            )
        return self


class Share(Conditions):
    """Processes that share one GPU, see `dippm.share`."""

    NAME: ClassVar[str] = "share"
    models: Annotated[list[ModelRef], Field(min_length=1, max_length=MOST_MODELS)]
    device: Name = "A100"
    batch: Batch | Annotated[list[Batch], Field(min_length=1, max_length=MOST_MODELS)] = 1
    mig: Name | None = None
    precision: Text = "fp32"
    sharing: Text = "mps"
    percentages: Annotated[list[Number], Field(max_length=MOST_MODELS)] | None = None
    slices: Annotated[list[Name], Field(max_length=MOST_MODELS)] | None = None
    memory_limits_mb: Annotated[list[Number | None], Field(max_length=MOST_MODELS)] | None = None
    copies: Annotated[Whole, Field(ge=1, le=MOST_MODELS)] = 1


QUESTIONS: dict[str, type[Conditions]] = {
    question.NAME: question
    for question in (Predict, Fit, Choose, Slice, ForScheduler, Compare, Share)
}


def read_question(kind: type[Conditions], given: str | bytes | Mapping[str, Any]) -> Conditions:
    """Validate a question and return it.

    Args:
        kind: class of the question.
        given: JSON, or the fields by name.

    Raises:
        BadQuestionError: if a field is missing, wrong or unknown.
    """
    try:
        if isinstance(given, Mapping):
            return kind.model_validate(given)
        return kind.model_validate_json(given)
    except ValidationError as error:
        parts = []
        for one in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
            names = [str(part) for part in one["loc"] if not _OF_PYDANTIC.search(str(part))]
            place = ".".join(names) or "the question"
            parts.append(f"{place}: {one['msg']}")
        raise BadQuestionError("; ".join(parts), "GET /openapi.json has every field.") from error
    except RecursionError as error:
        raise BadQuestionError("the question is nested too deeply", "Ask plainly.") from error
