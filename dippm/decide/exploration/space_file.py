"""A search from a TOML file, for spaces without functions: models by name or path."""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from dippm.base.files import open_regular, shown
from dippm.decide.exploration.errors import ExploreError
from dippm.decide.exploration.space import Space
from dippm.errors import DippmError
from dippm.estimate.conditions import KINDS, RunOptions, usual_values
from dippm.estimate.model_list import batches_of

MOST_BYTES = 1 << 20
WHOLE = "full"
EXAMPLE = """models = ["timm:resnet18", "timm:resnet50", "my_model.onnx"]
batch = "1:64"
device = ["A100", "H100"]
mig = ["full", "1g.5gb"]
objectives = ["latency_ms", "throughput"]
constraints = { latency_ms = 5, memory_mb = "1g.5gb", throughput = [1000, inf] }"""


class _SpaceFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    models: list[str]
    input: str | None = None
    batch: int | str | list[int] = 1
    precision: str | list[str] = "fp32"
    device: str | list[str] = "A100"
    mig: str | list[str] = WHOLE
    objectives: list[str] | dict[str, Literal["min", "max"]] = ["latency_ms"]
    constraints: dict[str, float | str | list[float]] = {}


_FIELDS: Any = {
    name: (str | float | None if float in KINDS[name] else KINDS[name][0], usual)
    for name, usual in usual_values(RunOptions).items()
}
_File = create_model("_File", __base__=_SpaceFile, **_FIELDS)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The search that a file describes.

    Attributes:
        space: design space.
        objectives: objectives, as `explore` takes them.
        constraints: constraints, as `explore` takes them.
    """

    space: Space
    objectives: list[str] | dict[str, str]
    constraints: dict[str, Any]


def read_space(path: str | os.PathLike[str]) -> SearchRequest:
    """Read the search that a file describes; "full" is the whole GPU, and inf no limit.

    Raises:
        ExploreError: if it cannot be read, or a field is not known or of another type.
        DippmError: as `Space` does.
    """
    file = Path(path).expanduser()
    what = shown(file.name, 80)
    try:
        with open_regular(file) as stream:
            text = stream.read(MOST_BYTES + 1)
    except DippmError as error:
        raise ExploreError(error.message, error.hint) from error
    try:
        if len(text) > MOST_BYTES:
            raise ValueError("it is longer than a megabyte")
        found = _File.model_validate(tomllib.loads(text.decode("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][:1]))
        raise ExploreError(f"{what}: {where}: {first['msg']}", f"For example:\n{EXAMPLE}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ExploreError(f"{what}: {reason}", f"For example:\n{EXAMPLE}") from error
    slices = [found.mig] if isinstance(found.mig, str) else found.mig
    space = Space(
        found.models,
        input=found.input,
        batch=batches_of(found.batch) if isinstance(found.batch, str) else found.batch,
        precision=found.precision,
        device=found.device,
        mig=[None if name.strip().casefold() == WHOLE else name for name in slices],
        **found.model_dump(include=set(_FIELDS)),
    )
    limits = {name: _limit(value) for name, value in found.constraints.items()}
    goals: Any = found.objectives
    return SearchRequest(space, goals, limits)


def _limit(value: float | str | list[float]) -> Any:
    if isinstance(value, list):
        return tuple(None if math.isinf(end) else end for end in value)
    return value
