"""Data-dependent sizes, replaced by upper bounds: how detectors become graphs.

A suppression keeps at most its own limit, a selection at most everything. Such a bound is close to
the truth for selected boxes, or after the last layer. Before a layer it may be far off (each expert
of a mixture would get all tokens), and the graph is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.infer import Type
from dippm.model.relax.onnx.tracing import (
    DEFAULT_DOMAINS,
    Tensor,
    TracedStep,
    UnsupportedError,
    malformed_error,
    message_start,
)

BOXES = "NonMaxSuppression"
BOUND = (
    "sizes that depend on data ({names}) were stated as their upper bound, as if every candidate "
    "passed"
)
_DEPENDS = "the size of its result depends on the data, and layers follow that would get all of it"
_ONE_WAY = "Export the part of the model before it, or the model without the selection."
_LAYERS = frozenset("Conv ConvTranspose Gemm MatMul LSTM GRU RNN MatMulInteger QLinearConv".split())

Attributes = Mapping[str, Any]


def _boxes(inputs: Sequence[Tensor | None], attributes: Attributes) -> list[Type]:
    """At most the limit per class and image; a row contains image, class and box."""
    boxes, scores = inputs[0], inputs[1]
    assert boxes is not None
    assert scores is not None
    images, classes, candidates = scores.shape
    limit = inputs[2] if len(inputs) > 2 else None
    most = candidates
    if limit is None:
        most = 0  # ONNX's default: nothing is kept
    elif limit.data is not None:
        most = min(max(int(limit.data.reshape(-1)[0]), 0), candidates)
    return [((images * classes * most, 3), TensorProto.INT64)]


def _places(inputs: Sequence[Tensor | None], _: Attributes) -> list[Type]:
    source = inputs[0]
    assert source is not None
    return [((max(len(source.shape), 1), prod(source.shape)), TensorProto.INT64)]


def _kept(inputs: Sequence[Tensor | None], attributes: Attributes) -> list[Type]:
    """Compress: at most as many rows as the condition has entries."""
    source, condition = inputs[0], inputs[1]
    assert source is not None
    assert condition is not None
    count = prod(condition.shape)
    if "axis" not in attributes:
        return [((min(count, prod(source.shape)),), source.element_type)]
    axis, shape = int(attributes["axis"]), list(source.shape)
    shape[axis] = min(count, shape[axis])
    return [(tuple(shape), source.element_type)]


def _unique(inputs: Sequence[Tensor | None], attributes: Attributes) -> list[Type]:
    """Unique: values, first positions, inverse indices and counts."""
    source = inputs[0]
    assert source is not None
    axis = attributes.get("axis")
    shape = (prod(source.shape),) if axis is None else source.shape
    count = shape[0] if axis is None else shape[int(axis)]
    rows = ((count,), TensorProto.INT64)
    return [(shape, source.element_type), rows, rows, rows]


SELECTIONS: dict[str, Callable[[Sequence[Tensor | None], Attributes], list[Type]]] = {
    BOXES: _boxes,
    "NonZero": _places,
    "Compress": _kept,
    "Unique": _unique,
}
"""Bounds of a selection's results by ONNX operator name."""


def bound(
    node: onnx.NodeProto, inputs: Sequence[Tensor | None], attributes: Attributes
) -> dict[str, Type]:
    """Return the largest possible types of the results of one of `SELECTIONS`.

    Raises:
        UnsupportedError: if it always keeps nothing.
        ModelFileError: if its inputs have wrong ranks.
    """
    if node.domain not in DEFAULT_DOMAINS:
        return {}
    rule = SELECTIONS[node.op_type]
    try:
        types = dict(zip(node.output, rule(inputs, attributes), strict=False))
    except (AssertionError, LookupError, ValueError) as error:
        raise malformed_error(message_start(node) + "its inputs are none that it takes") from error
    if any(0 in shape for shape, _ in types.values()):
        raise UnsupportedError(
            node, "it keeps nothing: its max_output_boxes_per_class is 0, which is the default"
        )
    return types


def notes(
    stated: Sequence[tuple[onnx.NodeProto, TracedStep]], steps: Sequence[TracedStep]
) -> list[str]:
    """Return notes on the sizes that were replaced by bounds.

    Args:
        stated: the bounded selections, in order.
        steps: all operators that the results depend on.

    Raises:
        UnsupportedError: if their bounds may be far from the truth.
    """
    present = {id(step) for step in steps}
    stated = [(node, step) for node, step in stated if id(step) in present]
    names = dict.fromkeys(step.operator for _, step in stated)
    if not names:
        return []
    if BOXES not in names:
        _check_last(stated, steps)
    return [BOUND.format(names=", ".join(names))]


def _check_last(
    stated: Sequence[tuple[onnx.NodeProto, TracedStep]], steps: Sequence[TracedStep]
) -> None:
    """Raise if a layer works on the bounded rows of a selection."""
    nodes = {id(step): node for node, step in stated}
    reached: set[int] = set()
    has_layers = False
    for step in steps:
        is_scatter = step.operator.startswith("Scatter")  # as large as its first argument
        read = step.inputs[:1] if is_scatter else step.inputs
        sources = [t.producer for t in read if t is not None and t.data is None]
        if id(step) in nodes or any(id(source) in reached for source in sources):
            reached.add(id(step))
        weights = (t for t in step.inputs[1:] if t is not None and t.is_learned)
        if step.operator in _LAYERS and any(len(t.shape) > 1 for t in weights):
            has_layers = True
            if id(step) in reached:
                raise UnsupportedError(stated[0][0], _DEPENDS, _ONE_WAY)
    if not has_layers:  # so there is no last layer
        raise UnsupportedError(stated[0][0], "the size of its result depends on the data", _ONE_WAY)
