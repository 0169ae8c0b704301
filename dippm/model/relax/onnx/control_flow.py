"""Operators of ONNX that steer a trace: static control flow, sequences and optional values.

A known condition of an `If` selects its branch. If data decide, the more expensive branch is used,
with a note, as in a SavedModel of TensorFlow. A `Loop` or `Scan` with a known number of iterations
is unrolled, so that every iteration counts with its own shapes.

Exporters use sequences around loops and for lists of results. During tracing they are Python lists:
a sequence of known length needs no operator of its own, only concatenating and splitting tensors is
work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.fold import Array
from dippm.model.relax.onnx.tracing import (
    BatchFixedError,
    Block,
    Tensor,
    TracedStep,
    Tracing,
    UnsupportedError,
    how_to_give_values,
    malformed_error,
    message_start,
)

Carried = Tensor | list[Tensor]
Attributes = Mapping[str, Any]


def _if(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
    """Trace the branch that a known condition selects, or the more expensive one."""
    condition = tracer.need(node, 0)
    label = node.name or node.output[0]
    if condition.data is not None:
        chosen = "then_branch" if bool(condition.data.reshape(-1)[:1].any()) else "else_branch"
        with tracer.scope(label):
            results = _walk_block(tracer, node, _block(node, attributes, chosen))
    elif tracer.open_values([condition]):
        raise _unknown(tracer, node, condition, "its condition")
    else:
        results = _costlier(tracer, node, attributes, label)
    for name, result in zip(node.output, results, strict=False):
        tracer.write(name, result)


def _walk_block(tracer: Tracing, node: onnx.NodeProto, block: Block) -> list[Carried]:
    tracer.walk(block)
    return _results(tracer, block, node)


def _costlier(
    tracer: Tracing, node: onnx.NodeProto, attributes: Attributes, label: str
) -> list[Carried]:
    """Trace both branches; return the results of the one with more arithmetic."""
    before = dict(tracer.notes)
    found: list[tuple[int, list[Carried], dict[str, None]]] = []
    for name in ("then_branch", "else_branch"):
        start = len(tracer.steps)
        tracer.notes.clear()
        with tracer.scope(f"{label}.{name}"):
            results = _walk_block(tracer, node, _block(node, attributes, name))
        found.append((work(results, tracer.steps[start:]), results, dict(tracer.notes)))
    (_, results, notes), (_, others, _) = sorted(found, key=lambda f: -f[0])
    if len(results) != len(others) or not all(map(_covers, results, others)):
        raise UnsupportedError(
            node,
            "its condition depends on the data, and its branches give results of different kinds",
            _ONE_WAY,
        )
    tracer.notes.clear()
    tracer.notes.update(before | notes)
    tracer.note(f"data decide which of 2 branches of {label} runs: the costliest was read")
    return results


def _covers(result: Carried, other: Carried) -> bool:
    """Return whether a result may replace another one: same type, and no size smaller."""
    if isinstance(result, list) or isinstance(other, list):
        if not (isinstance(result, list) and isinstance(other, list)):
            return False
        return len(result) == len(other) and all(map(_covers, result, other))
    return (
        result.element_type == other.element_type
        and len(result.shape) == len(other.shape)
        and all(a >= b for a, b in zip(result.shape, other.shape, strict=True))
    )


def _loop(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
    body = _block(node, attributes, "body")
    limit = tracer.read(node.input[0], node.name) if node.input else None
    go = tracer.read(node.input[1], node.name) if len(node.input) > 1 else None
    carried = [_read_carried(tracer, name, node) for name in node.input[2:]]
    if limit is not None and limit.data is None:
        raise _unknown(tracer, node, limit, "its number of rounds")
    if go is not None and go.data is None:
        raise _unknown(tracer, node, go, "its condition")
    rounds = None if limit is None else max(int(limit.data.reshape(-1)[0]), 0)  # type: ignore[union-attr]
    _check_rounds(tracer, node, rounds)
    formal = [value.name for value in body.graph.input]
    if len(formal) != len(carried) + 2:
        raise malformed_error(
            message_start(node) + "its body takes another number of inputs than it gets"
        )
    rows: list[list[Tensor]] = []
    done = 0
    goes_on = go is None or bool(go.data.reshape(-1)[:1].any())  # type: ignore[union-attr]
    while goes_on and (rounds is None or done < rounds):
        with tracer.scope(f"{node.name or node.output[0]}.{done}"):
            tracer.write(formal[0], _number(formal[0], done, TensorProto.INT64))
            tracer.write(formal[1], _number(formal[1], True, TensorProto.BOOL))
            for name, value in zip(formal[2:], carried, strict=True):
                tracer.write(name, value)
            tracer.walk(body)
            goes, *results = _results(tracer, body, node)
        carried = results[: len(carried)]
        rows.append([t for t in results[len(carried) :] if isinstance(t, Tensor)])
        done += 1
        goes_on = _goes_on(tracer, node, goes, rounds)
    _finish(tracer, node, body, carried, rows, skipped=1)


def _goes_on(tracer: Tracing, node: onnx.NodeProto, goes: Carried, rounds: int | None) -> bool:
    if not isinstance(goes, Tensor):
        raise malformed_error(message_start(node) + "its body's condition is no tensor")
    if goes.data is not None:
        return bool(goes.data.reshape(-1)[:1].any())
    if rounds is None:
        raise _unknown(tracer, node, goes, "its number of rounds")
    tracer.note(
        f"the loop {node.name or node.output[0]!r} may end early depending on the data; it is "
        f"counted with its {rounds:,} rounds"
    )
    return True


def _scan(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
    body = _block(node, attributes, "body")
    scanned = int(attributes.get("num_scan_inputs", 0))
    names = list(node.input)
    formal = [value.name for value in body.graph.input]
    if len(names) == len(formal) + 1:
        raise UnsupportedError(node, "the form of opset 8, with a batch of its own, is not known")
    if not 0 < scanned <= len(names) or len(names) != len(formal):
        raise malformed_error(
            message_start(node) + "its body takes another number of inputs than it gets"
        )
    carried: list[Carried] = [_read_carried(tracer, name, node) for name in names[:-scanned]]
    sources = [tracer.need(node, len(carried) + i) for i in range(scanned)]
    axes = list(attributes.get("scan_input_axes") or [0] * scanned)
    backwards = list(attributes.get("scan_input_directions") or [0] * scanned)
    rounds = min(s.shape[axis] for s, axis in zip(sources, axes, strict=True))
    _check_rounds(tracer, node, rounds)
    rows: list[list[Tensor]] = []
    label = node.name or node.output[0]
    for done in range(rounds):
        with tracer.scope(f"{label}.{done}"):
            for name, value in zip(formal, carried, strict=False):
                tracer.write(name, value)
            for name, source, axis, back in zip(
                formal[len(carried) :], sources, axes, backwards, strict=True
            ):
                place = rounds - 1 - done if back else done
                index = _number(f"{name}.index", place, TensorProto.INT64)
                row = tracer.apply("Gather", [source, index], f"{label}.{name}.{done}", axis=axis)
                tracer.write(name, row)
            tracer.walk(body)
            results = _results(tracer, body, node)
        carried = results[: len(carried)]
        rows.append([t for t in results[len(carried) :] if isinstance(t, Tensor)])
    out_axes = list(attributes.get("scan_output_axes") or [])
    _finish(tracer, node, body, carried, rows, skipped=0, axes=out_axes)


def _finish(
    tracer: Tracing,
    node: onnx.NodeProto,
    body: Block,
    carried: list[Carried],
    rows: list[list[Tensor]],
    *,
    skipped: int,
    axes: list[int] | None = None,
) -> None:
    """Write the final states of a loop, and its rows concatenated to one tensor each."""
    for name, value in zip(node.output, carried, strict=False):
        if name:
            tracer.write(name, value)
    for i, name in enumerate(node.output[len(carried) :]):
        if not name:
            continue
        if not rows:
            raise UnsupportedError(node, "it never runs, so its rows have no known shape")
        axis = axes[i] if axes else 0
        place = np.asarray([axis], np.int64)
        lifted = []
        for n, row in enumerate(rows):
            shape = list(row[i].shape)
            shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
            target = Tensor(f"{name}.shape", (len(shape),), TensorProto.INT64, np.asarray(shape))
            lifted.append(tracer.apply("Reshape", [row[i], target], f"{name}.row{n}"))
        tracer.write(name, tracer.apply("Concat", lifted, name, axis=int(place[0])))


def _results(tracer: Tracing, block: Block, node: onnx.NodeProto) -> list[Carried]:
    return [_read_carried(tracer, value.name, node) for value in block.graph.output]


def _read_carried(tracer: Tracing, name: str, node: onnx.NodeProto) -> Carried:
    if name in tracer.lists:
        return tracer.lists[name]
    tensor = tracer.read(name, node.name or node.op_type)
    if tensor is None:
        raise malformed_error(f"ONNX operator {node.op_type} {node.name!r} lacks an input")
    return tensor


def _block(node: onnx.NodeProto, attributes: Attributes, name: str) -> Block:
    block = attributes.get(name)
    if not isinstance(block, Block):
        raise malformed_error(message_start(node) + f"it has no {name}")
    return block


def _number(name: str, value: int | bool, element_type: int) -> Tensor:
    kind = "bool" if element_type == TensorProto.BOOL else "int64"
    data: Array = np.asarray(value, kind)
    return Tensor(name, (), element_type, data)


def _check_rounds(tracer: Tracing, node: onnx.NodeProto, rounds: int | None) -> None:
    if tracer.marker and rounds and rounds % tracer.marker == 0:
        raise BatchFixedError(message_start(node) + "it runs once for each sample of the batch")


def _unknown(tracer: Tracing, node: onnx.NodeProto, tensor: Tensor, what: str) -> UnsupportedError:
    inputs = tracer.open_values([tensor])
    if inputs:
        names = ", ".join(sorted(repr(t.name) for t in inputs))
        return UnsupportedError(
            node, f"{what} depends on the value of input {names}", how_to_give_values(inputs)
        )
    return UnsupportedError(node, f"{what} depends on the data", _ONE_WAY)


_ONE_WAY = (
    "No static graph covers both ways: export the model without it, or export the part before it."
)


TRACERS: dict[str, Callable[[Tracing, onnx.NodeProto, Attributes], None]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
"""Function by operator name."""


# An estimate of the arithmetic of a branch, only to compare branches.


def work(results: Sequence[Tensor | list[Tensor]], steps: Sequence[TracedStep]) -> int:
    """Return the number of operations in the steps that the results depend on."""
    inside = {id(step) for step in steps}
    flat = [t for r in results for t in (r if isinstance(r, list) else [r])]
    stack = [t.producer for t in flat]
    total = 0
    while stack:
        step = stack.pop()
        if step is None or id(step) not in inside:
            continue
        inside.discard(id(step))
        total += _of_step(step)
        stack += [t.producer for t in step.inputs if t is not None and t.data is None]
    return total


def _of_step(step: TracedStep) -> int:
    read = [t.shape for t in step.inputs if t is not None]
    written = sum(prod(t.shape) for t in step.outputs if t is not None)
    if len(read) < 2:
        return written
    if "ConvTranspose" in step.operator:
        return prod(read[0]) * prod(read[1][1:])
    if "Conv" in step.operator:
        return written * prod(read[1][1:])
    if ("MatMul" in step.operator or step.operator == "Gemm") and read[0]:
        return written * read[0][0 if step.attributes.get("transA") else -1]
    if step.operator in ("LSTM", "GRU", "RNN"):
        return prod(read[0][:2]) * sum(prod(shape) for shape in read[1:3])
    return written


# Sequences and optional values, as Python lists.

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


SEQUENCE_TRACERS: dict[str, Callable[[Tracing, onnx.NodeProto, Attributes], None]] = {
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
