"""A TOML file of stages → `Pipeline`.

name = "caption"                 # optional, else that of the file
precision = "fp16"               # of stages that name none

[[stages]]
name = "encoder"
model = "timm:vit_base_patch16_224"   # or a file beside this one
input = "3,224,224"

[[stages]]
name = "decoder"
model = "decoder.onnx"
input = { states = "@encoder", token = "int:1" }
repeat = 20
batch_factor = 1
placement = "resident"           # or "offloaded"
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dippm.base.files import read_toml
from dippm.decide.pipelines.stage import MOST_STAGES, Pipeline, Stage
from dippm.errors import PipelineError, UnknownNameError, shortened
from dippm.model.frontends.named import is_name

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
    """Return the pipeline of a TOML file in the format that the top of this module shows.

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
