"""Sizes that no machine has: refused, not turned into figures with fifty digits.

The largest device of the catalogue has 2³⁸ bytes. A tensor of 2⁴⁰ elements, a model of 2⁴⁸ bytes
of weights, and a pass of 2⁷⁰ multiply-accumulates for one sample (a month on a thousand GPUs) lie
far beyond what anything could run, and far below where arithmetic loses its meaning. A file that
says so is damaged, hostile, or asked for at sizes that nobody meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dippm.errors import InputShapeError, ModelFileError
from dippm.model.graph.model_graph import ModelGraph, Shape

MAX_ELEMENTS = 1 << 40
MAX_PARAMETER_BYTES = 1 << 48
MAX_MACS = 1 << 70


def refuse_absurd_sizes(graph: ModelGraph) -> None:
    """Check a finished graph.

    Raises:
        InputShapeError: if an input has more elements in a sample than a tensor can have.
        ModelFileError: if an operator's tensor has, or if weights or MACs are too many.
    """
    batch = graph.batch if graph.batch_is_symbolic else 1
    for spec in graph.inputs:
        if _is_absurd(spec.shape, batch):
            raise InputShapeError(
                f"input {spec.name!r} has the sizes {_sizes(spec.shape, batch)}: no machine holds "
                "a tensor of that many elements",
                "Give the sizes that you mean with input=..., or export the model again.",
            )
    for what, shape in _tensors(graph):
        if _is_absurd(shape, batch):
            raise ModelFileError(
                f"{what} has a tensor of sizes {_sizes(shape, batch)}: no machine holds that many "
                "elements",
                "Give smaller sizes with input=...; if the file itself states them, export the "
                "model again.",
            )
    if graph.param_bytes > MAX_PARAMETER_BYTES:
        raise ModelFileError(
            f"the model has {graph.param_bytes >> 40:,} TiB of weights", "Export the model again."
        )
    if graph.macs > MAX_MACS and graph.macs // batch > MAX_MACS:
        raise ModelFileError(
            f"one sample takes about 2^{(graph.macs // batch).bit_length()} multiply-accumulates, "
            "which no machine finishes",
            "Give smaller sizes with input=..., or export the model again.",
        )


def _tensors(graph: ModelGraph) -> Iterator[tuple[str, Shape]]:
    for node in graph.nodes:
        for shape in (*node.in_shapes, *node.out_shapes):
            yield f"operator {node.op}", shape
    for spec in graph.outputs:
        yield f"output {spec.name!r}", spec.shape


def _is_absurd(shape: Shape, batch: int) -> bool:
    if prod(shape) <= MAX_ELEMENTS and all(size <= MAX_ELEMENTS for size in shape):
        return False
    sample = _per_sample(shape, batch)
    return prod(sample) > MAX_ELEMENTS or max(sample) > MAX_ELEMENTS


def _per_sample(shape: Shape, batch: int) -> Shape:
    """Return the sizes for a batch of one: the factor that stands for the batch, taken out."""
    return tuple(_without(size, batch) for size in shape)


def _without(size: int, factor: int) -> int:
    while factor > 1 and size and size % factor == 0:
        size //= factor
    return size


def _sizes(shape: Shape, batch: int) -> str:
    return " × ".join(f"{size:,}" for size in _per_sample(shape, batch)) or "1"
