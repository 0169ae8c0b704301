"""Pipelines: models that run one after the other, the data between them, and their TOML files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dippm.base.files import read_toml
from dippm.errors import PipelineError, UnknownNameError, shortened
from dippm.model.frontends.named import is_name

Placement = Literal["resident", "offloaded"]
PLACEMENTS: tuple[str, ...] = get_args(Placement)
Input = str | Sequence[int] | Mapping[str, Any] | None

MOST_STAGES = 64
MOST_REPEATS = 100_000
MOST_FACTOR = 10_000
_NAME = re.compile(r"[\w][\w .-]{0,39}")
_GIVEN = re.compile(r"@(?P<stage>[^@\[\]]+)(?:\[(?P<output>\d{1,3})\])?")


@dataclass(frozen=True, slots=True)
class StageInput:
    """An input that is the output of another stage.

    Attributes:
        stage: name of that stage.
        output: index of its output, from 0.
    """

    stage: str
    output: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One model of a pipeline.

    Attributes:
        name: unique name of the stage.
        model: model as `dippm.predict` takes it: a path, a name, or an object.
        input: sizes without the batch, as `dippm.predict` takes them; in place of sizes "@NAME" is
            the first output of another stage, "@NAME[1]" its second. None takes the sizes that the
            model states.
        after: names of stages that run earlier, in addition to those that provide an input.
        repeat: number of runs of the stage in one pass of the pipeline.
        batch_factor: samples of the stage per sample of the pipeline; 2 with guidance.
        placement: "resident" if the weights stay on the GPU, "offloaded" if they are copied to it
            before the stage and back after it.
        precision: precision of this stage; None takes that of the pipeline.

    Raises:
        PipelineError: if a name, a number or an input is not valid.
    """

    name: str
    model: Any
    input: Input = None
    after: tuple[str, ...] = ()
    repeat: int = 1
    batch_factor: int = 1
    placement: Placement = "resident"
    precision: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise PipelineError(
                f"{shortened(repr(self.name))} is not the name of a stage",
                "Give up to 40 letters, digits, '.', '-', '_' and blanks.",
            )
        where = f"stage {self.name}"
        _check_whole(f"{where}: repeat", self.repeat, MOST_REPEATS)
        _check_whole(f"{where}: batch_factor", self.batch_factor, MOST_FACTOR)
        if self.placement not in PLACEMENTS:
            error = UnknownNameError.of("placement", str(self.placement), PLACEMENTS)
            raise PipelineError(f"{where}: {error.message}", error.hint)
        after: Any = self.after  # a file or a caller may give a single name
        object.__setattr__(self, "after", (after,) if isinstance(after, str) else tuple(after))
        self.given()

    def given(self) -> dict[str, StageInput]:
        """Return the inputs that come from other stages, by name; "" names a single input.

        Raises:
            PipelineError: if one is not written as "@NAME" or "@NAME[1]".
        """
        inputs = self.input if isinstance(self.input, Mapping) else {"": self.input}
        return {
            str(name): _given(value, self.name)
            for name, value in inputs.items()
            if isinstance(value, str) and value.strip().startswith("@")
        }

    @property
    def before(self) -> tuple[str, ...]:
        """Names of the stages that have to run before this one, each once."""
        return tuple(dict.fromkeys([*self.after, *(g.stage for g in self.given().values())]))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Models that run one after the other; stages may be given in any order.

    Attributes:
        name: name in the answer.
        stages: at least one stage.
        precision: precision of stages that name none.
        notes: remarks for the answer, such as what the pipeline leaves out.

    Raises:
        PipelineError: if there is no stage, a name occurs twice, a stage names an unknown one, or
            stages wait for each other.
    """

    name: str
    stages: tuple[Stage, ...]
    precision: str = "fp32"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        count = len(self.stages)
        if not 1 <= count <= MOST_STAGES:
            raise PipelineError(
                f"{self.name} has {count or 'no'} stages", f"Give 1 to {MOST_STAGES} of them."
            )
        seen: set[str] = set()
        for stage in self.stages:
            if stage.name in seen:
                raise PipelineError(
                    f"{self.name} has two stages {stage.name!r}", "Give each a name of its own."
                )
            seen.add(stage.name)
        for stage in self.stages:
            for name in stage.before:
                if name not in seen:
                    error = UnknownNameError.of("stage", name, seen)
                    raise PipelineError(
                        f"stage {stage.name} waits for {shortened(repr(name))}, which is not a "
                        f"stage of {self.name}",
                        error.hint,
                    )
        object.__setattr__(self, "stages", tuple(_in_order(self)))


def _in_order(pipeline: Pipeline) -> Iterator[Stage]:
    """Yield the stages in topological order, otherwise in the order given."""
    left, done = list(pipeline.stages), set[str]()
    while left:
        ready = next((stage for stage in left if done.issuperset(stage.before)), None)
        if ready is None:
            circle = " → ".join(_circle({stage.name: stage for stage in left}))
            raise PipelineError(
                f"stages of {pipeline.name} wait for each other: {circle}",
                "Take one of these out of `input` or `after`; a loop is one stage with repeat=N.",
            )
        left.remove(ready)
        done.add(ready.name)
        yield ready


def _circle(waiting: Mapping[str, Stage]) -> list[str]:
    """Return a cycle of stage names, each waiting for the next; the first is also the last."""
    path = [next(iter(waiting))]
    while True:
        name = next(name for name in waiting[path[-1]].before if name in waiting)
        if name in path:
            return [*path[path.index(name) :], name]
        path.append(name)


def _given(text: str, stage: str) -> StageInput:
    found = _GIVEN.fullmatch(text.strip())
    if found is None:
        raise PipelineError(
            f"stage {stage}: input {shortened(repr(text))} names no stage",
            'Write "@NAME" for its first result, "@NAME[1]" for its second.',
        )
    return StageInput(found["stage"].strip(), int(found["output"] or 0))


def _check_whole(what: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PipelineError(
            f"{what} is {shortened(repr(value))}", f"Give a whole number from 1 to {most:,}."
        )


# TOML files of pipelines:
#
# name = "caption"                 # optional, else that of the file
# precision = "fp16"               # of stages that name none
#
# [[stages]]
# name = "encoder"
# model = "timm:vit_base_patch16_224"   # or a file beside this one
# input = "3,224,224"
#
# [[stages]]
# name = "decoder"
# model = "decoder.onnx"
# input = { states = "@encoder", token = "int:1" }
# repeat = 20
# batch_factor = 1
# placement = "resident"           # or "offloaded"

MOST_BYTES = 1 << 18
MOST_INPUTS = 64
EXAMPLE = "examples/pipelines/caption.toml is a complete example."
TABLE: Mapping[str, type] = {"name": str, "precision": str, "notes": list, "stages": list}
STAGE: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "model": str,
    "input": (str, dict),
    "after": (str, list),
    "repeat": int,
    "batch_factor": int,
    "placement": str,
    "precision": str,
}


def read_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """Return the pipeline of a TOML file, as in the example above.

    Raises:
        PipelineError: if the file cannot be read or is no small TOML file, if a key or value in it
            is not valid, or if its stages do not form a pipeline.
    """
    table, what, _ = read_toml(
        path,
        PipelineError,
        most_bytes=MOST_BYTES,
        unreadable="`dippm pipeline --list` names those that are shipped.",
        too_large=EXAMPLE,
        malformed=EXAMPLE,
    )
    _check(table, TABLE, what)
    stages = table.get("stages", [])
    if not stages:
        raise PipelineError(f"{what} has no stages", f"Write [[stages]]. {EXAMPLE}")
    if len(stages) > MOST_STAGES:
        raise PipelineError(f"{what} has {len(stages):,} stages", f"At most {MOST_STAGES} work.")
    folder = Path(path).expanduser().parent
    found = tuple(_stage(one, n, what, folder) for n, one in enumerate(stages, 1))
    notes = _texts(table.get("notes", []), f"{what}: notes")
    name = table.get("name") or Path(path).stem
    return Pipeline(shortened(name), found, table.get("precision", "fp32"), notes)


def _stage(table: Any, number: int, what: str, folder: Path) -> Stage:
    where = f"{what}: stage {number}"
    if not isinstance(table, Mapping):
        raise PipelineError(f"{where} is not a table", f"Write [[stages]]. {EXAMPLE}")
    _check(table, STAGE, where)
    for key in ("name", "model"):
        if not table.get(key):
            raise PipelineError(f"{where} has no {key}", EXAMPLE)
    given = dict(table)
    model = given["model"]
    if not is_name(model):
        given["model"] = str(folder / model)
    elif model.startswith("hf-config:"):  # this folder is relative to the file, too
        prefix, _, rest = model.partition(":")
        given["model"] = f"{prefix}:{folder / os.path.expanduser(rest)}"
    if isinstance(given.get("after"), list):
        given["after"] = _texts(given["after"], f"{where}: after")
    if isinstance(given.get("input"), Mapping):
        inputs = given["input"]
        if len(inputs) > MOST_INPUTS:
            raise PipelineError(f"{where} has {len(inputs):,} inputs", f"At most {MOST_INPUTS}.")
        for name, value in inputs.items():
            if not isinstance(value, str):
                raise PipelineError(
                    f"{where}: input {shortened(name)} is {shortened(repr(value))}",
                    'Give sizes as text, "3,224,224", or a stage, "@NAME".',
                )
    return Stage(**given)


def _check(table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """Refuse unknown keys, naming the closest known one, and values of another type."""
    for key, value in table.items():
        if key not in known:
            error = UnknownNameError.of("key", str(key), known)
            raise PipelineError(f"{where}: {error.message}", f"{error.hint}. {EXAMPLE}")
        kinds = known[key] if isinstance(known[key], tuple) else (known[key],)
        if isinstance(value, bool) or not isinstance(value, kinds):
            names = {str: "text", int: "a whole number", list: "a list", dict: "a table"}
            raise PipelineError(
                f"{where}: {key} is {shortened(repr(value))}",
                f"Give {' or '.join(names[kind] for kind in kinds)}.",
            )


def _texts(values: Sequence[Any], where: str) -> tuple[str, ...]:
    if len(values) > MOST_STAGES or not all(isinstance(value, str) for value in values):
        raise PipelineError(f"{where} is not a short list of texts", EXAMPLE)
    return tuple(values)
