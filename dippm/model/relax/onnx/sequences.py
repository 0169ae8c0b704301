"""Sequences and optional values of ONNX, as Python lists during tracing.

Exporters use them around loops and for lists of results. A sequence of known length needs no
operator of its own: only concatenating and splitting tensors is work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.tracing import (
    BatchFixedError,
    Tensor,
    Tracing,
    UnsupportedError,
    malformed_error,
    message_start,
)

Attributes = Mapping[str, Any]
_UNKNOWN_PLACE = "the place in the sequence depends on the data"


def _items(tracer: Tracing, node: onnx.NodeProto) -> list[Tensor]:
    name = node.input[0] if node.input else ""
    if name not in tracer.lists:
        raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} reads no sequence")
    return tracer.lists[name]


def _place(tracer: Tracing, node: onnx.NodeProto, position: int, default: int) -> int:
    if len(node.input) <= position or not node.input[position]:
        return default
    data = tracer.need(node, position).data
    if data is None:
        raise UnsupportedError(node, _UNKNOWN_PLACE)
    return int(data.reshape(-1)[0])


def _empty(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    tracer.write(node.output[0], [])


def _construct(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    tracer.write(node.output[0], [tracer.need(node, i) for i in range(len(node.input))])


def _insert(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    items = list(_items(tracer, node))
    items.insert(_place(tracer, node, 2, len(items)), tracer.need(node, 1))
    tracer.write(node.output[0], items)


def _erase(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    items = list(_items(tracer, node))
    place = _place(tracer, node, 1, -1)
    if not -len(items) <= place < len(items):
        raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} names place {place}")
    del items[place]
    tracer.write(node.output[0], items)


def _at(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    items, place = _items(tracer, node), _place(tracer, node, 1, 0)
    if not -len(items) <= place < len(items):
        raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} names place {place}")
    tracer.write(node.output[0], items[place])


def _length(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    data = np.asarray(len(_items(tracer, node)), np.int64)
    tracer.write(node.output[0], Tensor(node.output[0], (), TensorProto.INT64, data))


def _join(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
    items, name = _items(tracer, node), node.output[0]
    if not items:
        raise UnsupportedError(node, "the sequence is empty")
    axis = int(attributes.get("axis", 0))
    if attributes.get("new_axis"):
        rank = len(items[0].shape) + 1
        lifted = []
        for i, item in enumerate(items):
            shape = list(item.shape)
            shape.insert(axis % rank, 1)
            target = Tensor(f"{name}.shape", (rank,), TensorProto.INT64, np.asarray(shape))
            lifted.append(tracer.apply("Reshape", [item, target], f"{name}.item{i}"))
        items, axis = lifted, axis % rank
    tracer.write(name, tracer.apply("Concat", items, name, axis=axis))


def _split(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
    source, name = tracer.need(node, 0), node.output[0]
    axis = int(attributes.get("axis", 0)) % max(len(source.shape), 1)
    if tracer.marker and source.shape[axis] % tracer.marker == 0:
        raise BatchFixedError(message_start(node) + "it splits the batch into a sequence")
    sizes = [1] * source.shape[axis]
    if len(node.input) > 1 and node.input[1]:
        data = tracer.need(node, 1).data
        if data is None:
            raise UnsupportedError(node, "the sizes of the parts depend on the data")
        if data.ndim:
            sizes = [int(size) for size in data]
        else:
            whole, step = source.shape[axis], max(int(data), 1)
            sizes = [min(step, whole - start) for start in range(0, whole, step)]
    keeps = bool(attributes.get("keepdims", 1)) or len(node.input) > 1
    parts, start = [], 0
    for i, size in enumerate(sizes):
        bounds = [
            Tensor(f"{name}.bound", (1,), TensorProto.INT64, np.asarray([n], np.int64))
            for n in (start, start + size, axis)
        ]
        part = tracer.apply("Slice", [source, *bounds], f"{name}.part{i}")
        if not keeps:
            shape = np.asarray([n for k, n in enumerate(part.shape) if k != axis], np.int64)
            target = Tensor(f"{name}.shape", (len(shape),), TensorProto.INT64, shape)
            part = tracer.apply("Reshape", [part, target], f"{name}.row{i}")
        parts.append(part)
        start += size
    tracer.write(name, parts)


def _optional(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    if not node.input or not node.input[0]:
        raise UnsupportedError(node, "it is an optional value that is absent")
    items = tracer.lists.get(node.input[0])
    tracer.write(node.output[0], items if items is not None else tracer.need(node, 0))


def _has_element(tracer: Tracing, node: onnx.NodeProto, _: Attributes) -> None:
    data = np.asarray(bool(node.input and node.input[0]), np.bool_)
    tracer.write(node.output[0], Tensor(node.output[0], (), TensorProto.BOOL, data))


TRACERS: dict[str, Callable[[Tracing, onnx.NodeProto, Attributes], None]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _join,
    "SplitToSequence": _split,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _has_element,
}
"""Function by operator name."""
