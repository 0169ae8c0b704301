"""`pipeline` predicts the cost of models that run one after the other, stage by stage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.api import load
from dippm.base import files
from dippm.base.progress import stage as shown_stage
from dippm.base.progress import tell
from dippm.decide.pipelines.answer import PipelinePrediction, answer_of
from dippm.decide.pipelines.memory import StageRun, copy_time
from dippm.decide.pipelines.shipped import SHIPPED, parameters_of
from dippm.decide.pipelines.stage import Input, Pipeline, Stage, StageInput, read_pipeline
from dippm.errors import (
    ConditionsError,
    DippmError,
    ModelFileError,
    PipelineError,
    UnknownNameError,
    shortened,
)
from dippm.estimate.conditions import phase_of
from dippm.estimate.options import CheckpointLike, WarmOptions
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph

OF_STAGES = ("input", "batch", "device", "precision", "trust")
OPTIONS = tuple(name for name in WarmOptions.__annotations__ if name not in OF_STAGES)
"""Conditions that all stages share."""


def pipeline(
    source: str | os.PathLike[str] | Pipeline,
    *,
    batch: int = 1,
    device: DeviceLike | None = None,
    precision: str | None = None,
    offload: bool = False,
    checkpoint: CheckpointLike = None,
    trust: bool = False,
    **options: Any,
) -> PipelinePrediction:
    """Predict latency, energy and memory over time of models that run one after the other.

    Args:
        source: name of a shipped pipeline ("sdxl"), path of a TOML file of stages, or a `Pipeline`.
        batch: number of samples of the pipeline (images, clips, questions); each stage runs with
            `batch_factor` times as many.
        device: GPU, as `predict` takes it; None takes that of a loaded checkpoint, else "A100".
        precision: precision of stages that name none; None takes that of the pipeline.
        offload: whether the weights of a stage stay in host memory while it does not run.
        checkpoint: checkpoint of the predictor, as `predict` takes it.
        trust: whether to read files that can run code.
        **options: other conditions of `predict` (mode, mig, host, attention, context_mb, runtime,
            ...), and the parameters of a shipped pipeline (width, height, steps, guidance, ...).

    Raises:
        PipelineError: if there is no such pipeline, its stages do not form one, a stage does not
            accept the output of another, or an option is not known.
        DippmError: as `predict` does, with the name of the stage.
    """
    found, given, conditions = _split_options(source, options)
    if precision is not None:
        found = replace(found, precision=precision)
    if offload:
        stages = tuple(replace(stage, placement="offloaded") for stage in found.stages)
        found = replace(found, stages=stages)
    if phase_of(conditions.get("phase") or "inference") != "inference":
        raise ConditionsError(
            "a pipeline runs inference, not training steps",
            "Leave phase=train out, or predict a step of one model.",
        )
    loaded = load(checkpoint, device=DEFAULT_DEVICE if device is None else device)
    conditions["device"] = loaded.device if device is None else device
    ran: list[StageRun] = []
    graphs: dict[str, ModelGraph] = {}
    for number, stage in enumerate(found.stages, 1):
        with shown_stage(f"{number} of {len(found.stages)}: {stage.name}"):
            one = _run(stage, found, loaded, graphs, batch=batch, trust=trust, options=conditions)
        graphs[stage.name] = one.prediction.source_graph
        ran.append(one)
    tell("adding up the stages")
    return answer_of(found, ran, batch=batch, loaded=loaded, parameters=given)


def _run(
    stage: Stage,
    pipeline: Pipeline,
    loaded: LoadedPredictor,
    graphs: Mapping[str, ModelGraph],
    *,
    batch: int,
    trust: bool,
    options: Mapping[str, Any],
) -> StageRun:
    """Predict one run of a stage."""
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise ConditionsError(f"batch is {batch!r}", "Give a whole number, at least 1.")
    sizes = _sizes_of(stage, graphs)
    try:
        prediction = loaded.predict(
            stage.model,
            input=sizes,
            batch=batch * stage.batch_factor,
            precision=stage.precision or pipeline.precision,  # type: ignore[arg-type]
            trust=trust,
            **options,
        )
        copy_ms = None
        if stage.placement == "offloaded" and prediction.memory_parts is not None:
            weights_mb = prediction.memory_parts.weights_mb
            copy_ms = copy_time(prediction.conditions.device, weights_mb)
    except ModelFileError as error:
        if stage.given():
            raise _refusal(stage, sizes, error) from error
        raise _name_stage(stage, error) from error
    except DippmError as error:
        raise _name_stage(stage, error) from error
    return StageRun(stage, prediction, copy_ms)


def _name_stage(stage: Stage, error: DippmError) -> DippmError:
    """Add the name of the stage to an error."""
    error.message = f"stage {stage.name}: {error.message}"
    return error


def _split_options(
    source: Any, options: Mapping[str, Any]
) -> tuple[Pipeline, dict[str, Any], dict[str, Any]]:
    """Return the pipeline, its given parameters, and the conditions.

    Raises:
        PipelineError: if the pipeline or an option is not known.
    """
    name = source.strip().casefold() if isinstance(source, str) else ""
    known = parameters_of(name) if name in SHIPPED else {}
    parameters = {key: value for key, value in options.items() if key in known}
    conditions = {key: value for key, value in options.items() if key not in known}
    for key in conditions:
        if key not in OPTIONS:
            error = UnknownNameError.of("option", key, (*known, *OPTIONS))
            taken = f"{name} takes {', '.join(known)}. " if known else ""
            raise PipelineError(f"{error.message} of a pipeline", taken + error.hint)
    if isinstance(source, Pipeline):
        return source, parameters, conditions
    if name in SHIPPED:
        given = {key: value for key, value in parameters.items() if value is not None}
        return SHIPPED[name].make(**given), {**known, **given}, conditions
    if not isinstance(source, str | os.PathLike) or not os.fspath(source):
        raise PipelineError(
            f"{shortened(repr(source))} is not a pipeline",
            "Give the name of a shipped one, a TOML file, or dippm.Pipeline(name, stages). Known: "
            f"{', '.join(SHIPPED)}.",
        )
    path = Path(files.expand_home(source))
    if path.suffix == ".toml" or path.exists():
        return read_pipeline(path), parameters, conditions
    error = UnknownNameError.of("pipeline", str(source), SHIPPED)
    raise PipelineError(error.message, f"{error.hint}, or a TOML file of stages.")


# Sizes of a stage's inputs: stated ones, and those of other stages' outputs.


def _sizes_of(stage: Stage, graphs: Mapping[str, ModelGraph]) -> Input:
    """Return the inputs of a stage as `dippm.predict` takes them.

    Args:
        stage: stage of the pipeline.
        graphs: graphs of the stages before it, by name.

    Raises:
        PipelineError: if a stage has no such output, or the first axis of it is not the batch.
    """
    given = {name: _sizes_from(one, stage.name, graphs) for name, one in stage.given().items()}
    if not given:
        return stage.input
    if isinstance(stage.input, Mapping):
        return {name: given.get(str(name), sizes) for name, sizes in stage.input.items()}
    return given[""]


def _sizes_from(given: StageInput, stage: str, graphs: Mapping[str, ModelGraph]) -> str:
    graph = graphs[given.stage]
    if given.output >= len(graph.outputs):
        raise PipelineError(
            f"stage {stage} takes result {given.output} of {given.stage}, which has "
            f"{len(graph.outputs)}",
            f'Results are counted from 0: "@{given.stage}[0]".',
        )
    spec = graph.outputs[given.output]
    if graph.batch_is_symbolic:
        # The axes whose sizes differ between two batches are those of the batch.
        others = (
            graph.at_batch(1).outputs[given.output].shape,
            graph.at_batch(2).outputs[given.output].shape,
        )
        axes = [i for i, (a, b) in enumerate(zip(*others, strict=True)) if a != b]
    else:
        others = spec.shape, spec.shape
        axes = [i for i, size in enumerate(spec.shape) if size == graph.batch][:1]
    if axes != [0]:
        raise PipelineError(
            f"stage {stage}: the first axis of what {given.stage} gives is not its batch: "
            f"{tuple(others[0])}",
            'Write the sizes of this input without the batch, as "3,224,224", and name the stage '
            f'in after = ["{given.stage}"].',
        )
    kind = "" if "float" in spec.dtype else "bool:" if "bool" in spec.dtype else "int:"
    return kind + ",".join(map(str, others[0][1:]))


def _refusal(stage: Stage, sizes: Any, error: Exception) -> PipelineError:
    """Return the error for a stage that does not accept the outputs of other stages."""
    given = ", ".join(
        f"{name or 'its input'} from {one.stage}" for name, one in stage.given().items()
    )
    message = getattr(error, "message", str(error))
    found = PipelineError(
        f"stage {stage.name} cannot take what other stages give it ({given}; sizes {sizes}): "
        f"{message}",
        "Check which result it takes (`@NAME[1]`), or write the sizes of its inputs and name the "
        "stages in `after`.",
    )
    found.__cause__ = error
    return found
