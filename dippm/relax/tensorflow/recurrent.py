"""A loop around a recurrent cell → one node "tf.LSTM", "tf.GRU" or "tf.RNN".

Keras writes a recurrent layer as a `While` that takes one step's row from a tensor list, runs the
cell, and writes the new state to another list. The cell is told by the width of what it computes
from its state: four gates over two states (LSTM), three (GRU) or one (RNN) over one state. A mask
adds the last valid output as one more state, before the cell's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tensorflow as tf
from tvm import relax

from dippm.errors import ConversionError
from dippm.relax.opaque import opaque_call
from dippm.relax.tensorflow.call import (
    Call,
    Converter,
    Match,
    Results,
    converts,
    dtype_of,
    shape_of,
)
from dippm.relax.tensorflow.graph import FlatGraph, flatten_function

CONVERTERS: dict[str, Converter] = {}
CELLS = {4: "LSTM", 3: "GRU", 1: "RNN"}
PRODUCTS = ("MatMul", "BatchMatMulV2")


@dataclass(frozen=True, slots=True)
class _Cell:
    name: str
    input_size: int
    hidden_size: int
    sequence: int
    """Position of the list of steps among the loop's arguments."""
    weights: tuple[int, ...]
    states: tuple[int, ...]


def match(loop: tf.Operation, flat: FlatGraph, is_activation: Callable[[tf.Tensor], bool]) -> Match:
    """Return the recurrent layer that a loop is; any other loop is carried whole."""
    cell = _read_cell(loop, flat)
    source = loop.inputs[cell.sequence].op if cell else None
    if cell is None or source is None or source.type != "TensorListFromTensor":
        return carry_whole(loop, flat)
    rows = source.inputs[0]
    if not rows.shape.is_fully_defined():
        return carry_whole(loop, flat)
    weights = [flat.variables.get(t.op.name, t) for t in (loop.inputs[i] for i in cell.weights)]
    weights = [t for t in weights if t.dtype.is_floating and not is_activation(t)]
    states = [t for t in (loop.inputs[i] for i in cell.states) if is_activation(t)]
    return Match(
        (rows, *weights, *states), lambda call: _build(call, cell, rows, [*weights, *states])
    )


def carry_whole(loop: tf.Operation, flat: FlatGraph) -> Match:
    """Carry a loop or condition as one operator; lists stand for their elements."""
    reads: list[tf.Tensor] = []
    steps = 0
    for given in loop.inputs:
        tensor = flat.variables.get(given.op.name, given)
        if given.op.type == "TensorListFromTensor":
            tensor = given.op.inputs[0]
            steps = max(steps, tensor.shape.as_list()[0] or 0)
        if tensor.dtype.is_floating and tensor.shape.is_fully_defined():
            reads.append(tensor)
    marks = {"steps": steps} if steps else {}

    def build(call: Call) -> Results:
        types = {i: _written(t) for i, t in enumerate(loop.outputs)}
        known = {i: t for i, t in types.items() if t is not None}
        if not known:
            raise ConversionError(
                f"the results of {loop.type} ({loop.name}) have sizes that depend on data",
                "Export the model without data-dependent control flow.",
            )
        inputs = [call.expression(t) for t in reads]
        name = "tf." + loop.type.removeprefix("Stateless")
        result = call.emit(opaque_call(name, inputs, list(known.values()), marks))
        if len(known) == 1:
            return [result if i in known else None for i in types]
        items = {i: call.emit(relax.TupleGetItem(result, k)) for k, i in enumerate(known)}
        return [items.get(i) for i in types]

    return Match(tuple(reads), build)


def _written(output: tf.Tensor) -> tuple[tuple[int, ...], str] | None:
    """Return the type of a loop's result; of a list, that of its elements together."""
    if output.dtype != tf.variant:
        known = output.shape.is_fully_defined() and output.dtype != tf.resource
        return (tuple(output.shape.as_list()), output.dtype.name) if known else None
    for consumer in output.consumers():
        if consumer.type == "TensorListStack" and consumer.outputs[0].shape.is_fully_defined():
            return tuple(consumer.outputs[0].shape.as_list()), consumer.outputs[0].dtype.name
    return None


def _build(call: Call, cell: _Cell, rows: tf.Tensor, others: list[tf.Tensor]) -> Results:
    x = call.expression(rows)
    steps, batch = rows.shape.as_list()[:2]
    dtype = dtype_of(x)
    state = ((batch, cell.hidden_size), dtype)
    states = [state] * (2 if cell.name == "LSTM" else 1)
    types = [((steps, batch, cell.hidden_size), dtype), *states]
    marks = {
        "hidden_size": cell.hidden_size,
        "input_size": cell.input_size,
        "steps": steps,
        "layers": 1,
        "bidirectional": 0,
    }
    inputs = [x, *(call.expression(t) for t in others)]
    result = call.emit(opaque_call("tf." + cell.name, inputs, types, marks))
    sequence, *finals = [call.emit(relax.TupleGetItem(result, i)) for i in range(len(types))]
    outputs: list[relax.Expr | None] = []
    for i, tensor in enumerate(call.operation.outputs):
        if tensor.dtype == tf.variant:
            outputs.append(None if i == cell.sequence else _kept(call, sequence, i))
        else:
            place = cell.states.index(i) - len(cell.states) if i in cell.states else None
            outputs.append(None if place is None else finals[max(place, -len(finals))])
    return outputs


def _kept(call: Call, sequence: relax.Var, position: int) -> relax.Expr:
    """Return what the loop wrote to a list: all steps, or the last ones only."""
    steps = shape_of(sequence)[0]
    reserved = call.operation.inputs[position].op
    kept = steps
    if reserved.type == "TensorListReserve":
        found = call.importer.statics.value(reserved.inputs[1])
        kept = steps if found is None else min(int(found), steps)
    if kept == steps:
        return sequence
    return relax.op.strided_slice(sequence, [0], [steps - kept], [steps], [1])


@converts(CONVERTERS, "TensorListStack", reads=(0,))
def _stacked(call: Call) -> Results:
    return call.x()


@converts(CONVERTERS, "TensorListGetItem", reads=(0,))
def _item(call: Call) -> Results:
    rows = shape_of(call.x())
    last = call.integers(1) or (rows[0] - 1,)
    start = min(last[0], rows[0] - 1)
    row = call.emit(relax.op.strided_slice(call.x(), [0], [start], [start + 1], [1]))
    return relax.op.squeeze(row, [0])


def _read_cell(loop: tf.Operation, flat: FlatGraph) -> _Cell | None:
    function = flat.functions.get(loop.get_attr("body").name)
    if function is None:
        return None
    shapes = [tuple(t.shape.as_list()) if t.shape.rank is not None else None for t in loop.inputs]
    handles = {i: t.op.node_def for i, t in enumerate(loop.inputs) if t.op.type == "VarHandleOp"}
    body = flatten_function(function, flat.functions, shapes, handles)
    changed = [a is not b for a, b in zip(body.inputs, body.outputs, strict=True)]
    states = [i for i, given in enumerate(body.inputs) if changed[i] and _is_state(given)]
    weights = [i for i in range(len(changed)) if not changed[i]]
    reads = [
        o
        for o in body.graph.get_operations()
        if o.type == "TensorListGetItem" and o.outputs[0].dtype.is_floating
    ]
    if not states or len(reads) != 1:
        return None
    return _cell(body, tuple(states), tuple(weights), reads[0])


def _cell(
    body: FlatGraph, states: tuple[int, ...], weights: tuple[int, ...], read: tf.Operation
) -> _Cell | None:
    from_state = _reached(body.graph, (body.inputs[i].op.name for i in states))
    from_row = _reached(body.graph, [read.name])
    hidden = body.inputs[states[0]].shape.as_list()[-1]
    if hidden is None:
        return None
    recurrent_width, input_size = 0, 0
    for operation in body.graph.get_operations():
        if operation.type not in PRODUCTS:
            continue
        depth, width = _weight_size(operation)
        if operation.inputs[0].op.name in from_state:
            recurrent_width += width
        elif operation.inputs[0].op.name in from_row:
            input_size = depth
    gates, rest = divmod(recurrent_width, hidden)
    name = CELLS.get(gates)
    least = 2 if name == "LSTM" else 1
    if name is None or rest or len(states) not in (least, least + 1):
        return None
    arguments = [t.name for t in body.inputs]
    sequence = arguments.index(read.inputs[0].name)
    return _Cell(name, input_size, hidden, sequence, weights, states)


def _weight_size(operation: tf.Operation) -> tuple[int, int]:
    sizes = operation.inputs[1].shape.as_list()[-2:]
    transposed = operation.get_attr("transpose_b" if operation.type == "MatMul" else "adj_y")
    depth, width = reversed(sizes) if transposed else sizes
    return int(depth or 0), int(width or 0)


def _reached(graph: tf.Graph, names: Iterable[str]) -> set[str]:
    reached = set(names)
    for operation in graph.get_operations():
        if any(t.op.name in reached for t in operation.inputs):
            reached.add(operation.name)
    return reached


def _is_state(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.shape.rank == 2)
