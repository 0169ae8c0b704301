"""Sizes of a stage's inputs: those of its description, and those of other stages' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dippm.decide.pipelines.stage import Input, Stage, StageInput
from dippm.errors import PipelineError
from dippm.model.graph import ModelGraph


def sizes_of(stage: Stage, graphs: Mapping[str, ModelGraph]) -> Input:
    """Return the inputs of a stage as `dippm.predict` takes them.

    Args:
        stage: the stage.
        graphs: graphs of the stages before it, by name.

    Raises:
        PipelineError: if a stage has no such output, or its output has no batch.
    """
    given = {name: _sizes(one, stage.name, graphs) for name, one in stage.given().items()}
    if not given:
        return stage.input
    if isinstance(stage.input, Mapping):
        return {name: given.get(str(name), sizes) for name, sizes in stage.input.items()}
    return given[""]


def output_bytes(graph: ModelGraph, batch: int, item_bytes: int) -> int:
    """Return the bytes of all outputs of a graph at a batch.

    Args:
        graph: the graph.
        batch: samples.
        item_bytes: bytes of a floating-point number; other types take 8.
    """
    total = 0
    for spec in graph.outputs if not graph.batch_is_symbolic else graph.at_batch(batch).outputs:
        count = 1
        for size in spec.shape:
            count *= max(1, size)
        total += count * (item_bytes if "float" in spec.dtype else 8)
    return total


def _sizes(given: StageInput, stage: str, graphs: Mapping[str, ModelGraph]) -> str:
    graph = graphs[given.stage]
    if given.output >= len(graph.outputs):
        raise PipelineError(
            f"stage {stage} takes result {given.output} of {given.stage}, which has "
            f"{len(graph.outputs)}",
            f'Results are counted from 0: "@{given.stage}[0]".',
        )
    spec = graph.outputs[given.output]
    if graph.batch_is_symbolic:
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


def refusal(stage: Stage, sizes: Any, error: Exception) -> PipelineError:
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
