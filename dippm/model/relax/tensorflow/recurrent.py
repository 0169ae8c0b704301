"""A loop around a recurrent cell → one operator "tf.LSTM", "tf.GRU" or "tf.RNN".

Keras writes a recurrent layer as a `While` that takes one step's row from a tensor list, runs the
cell, and writes the new state to another list. The cell is identified by the width of its products
with the state: four gates over two states (LSTM), three (GRU) or one (RNN) over one state, and the
same number from the input. A mask adds the last valid output as one more state, before the cell's
own. Other loops are unrolled (see `control_flow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tvm import relax

from dippm.errors import ConversionError
from dippm.model.relax.carried import opaque_call
from dippm.model.relax.tensorflow.call import (
    Converter,
    Match,
    Results,
    TensorFlowCall,
    converts,
    dtype_of,
    shape_of,
)
from dippm.model.relax.tensorflow.control_flow import shape_or_none
from dippm.model.relax.tensorflow.graph import FlatGraph, flatten_function
from dippm.model.relax.tensorflow.static import Statics

CONVERTERS: dict[str, Converter] = {}
CELLS = {4: "LSTM", 3: "GRU", 1: "RNN"}
PRODUCTS = ("MatMul", "BatchMatMulV2")
OTHER_PRODUCTS = frozenset(
    """
    BatchMatMul BatchMatMulV3 Einsum Conv2D Conv3D DepthwiseConv2dNative Conv2DBackpropInput
    Conv3DBackpropInputV2 While StatelessWhile If StatelessIf Case StatelessCase
    """.split()
)
"""Operations that occur in none of the cells."""


MADE_BY_SHAPE = frozenset({"ZerosLike", "OnesLike", "Fill"})


@dataclass(frozen=True, slots=True)
class _Cell:
    name: str
    input_size: int
    hidden_size: int
    sequence: int
    """Position of the list of steps among the loop's arguments."""
    counter: int
    """Position of the step number among the loop's arguments."""
    weights: tuple[int, ...]
    states: tuple[int, ...]


class Layers:
    """Finds recurrent layers among loops, and caches the result per loop body."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[Any, ...], FlatGraph | None] = {}
        self.cells: dict[tuple[Any, ...], _Cell | None] = {}

    def find(
        self, loop: tf.Operation, functions: Mapping[str, FunctionDef]
    ) -> tuple[_Cell, tf.Tensor] | None:
        """Return the cell of a recurrent layer and its input, steps first; None for other loops."""
        cell = self._cell(loop, functions)
        source = loop.inputs[cell.sequence].op if cell else None
        if cell is None or source is None or source.type != "TensorListFromTensor":
            return None
        rows, start = source.inputs[0], tf.get_static_value(loop.inputs[cell.counter])
        if start is None or start != 0 or not rows.shape.is_fully_defined():
            return None
        _, condition = self._body(loop, functions, "cond")
        return (cell, rows) if _takes_all(condition, loop, rows.shape[0]) else None

    def is_layer(self, loop: tf.Operation, functions: Mapping[str, FunctionDef]) -> bool:
        """Return whether a loop is a recurrent layer."""
        return self.find(loop, functions) is not None

    def _cell(self, loop: tf.Operation, functions: Mapping[str, FunctionDef]) -> _Cell | None:
        key, body = self._body(loop, functions, "body")
        if key not in self.cells:
            self.cells[key] = _read_cell(body) if body is not None else None
        return self.cells[key]

    def _body(
        self, loop: tf.Operation, functions: Mapping[str, FunctionDef], part: str
    ) -> tuple[tuple[Any, ...], FlatGraph | None]:
        """Return the key and the flattened body or condition of a loop; equal loops share them."""
        handles = {i: t.op.node_def for i, t in enumerate(loop.inputs) if _is_handle(t)}
        sizes = [str(node.attr["shape"].shape) for node in handles.values()]
        name, shapes = loop.get_attr(part).name, [shape_or_none(t) for t in loop.inputs]
        key = (name, *shapes, *handles, *sizes)
        if key not in self.bodies:
            function = functions.get(name)
            self.bodies[key] = function and flatten_function(function, functions, shapes, handles)
        return key, self.bodies[key]


def match(
    loop: tf.Operation, flat: FlatGraph, layers: Layers, is_activation: Callable[[tf.Tensor], bool]
) -> Match:
    """Return the recurrent layer of a loop, or the whole loop as one opaque call."""
    layer = layers.find(loop, flat.functions)
    if layer is None:
        return carry_whole(loop, flat)
    cell, rows = layer
    weights = [flat.variables.get(t.op.name, t) for t in (loop.inputs[i] for i in cell.weights)]
    weights = [t for t in weights if t.dtype.is_floating and not is_activation(t)]
    weights = [t for t in weights if t.op.type not in MADE_BY_SHAPE]
    states = [t for t in (loop.inputs[i] for i in cell.states) if is_activation(t)]
    return Match(
        (rows, *weights, *states), lambda call: _build(call, cell, rows, [*weights, *states])
    )


def carry_whole(loop: tf.Operation, flat: FlatGraph) -> Match:
    """Return a loop or condition as one opaque call, with the elements of its lists."""
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

    def build(call: TensorFlowCall) -> Results:
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
    """Return the type of a loop's result; for a list, that of its stacked elements."""
    if output.dtype != tf.variant:
        known = output.shape.is_fully_defined() and output.dtype != tf.resource
        return (tuple(output.shape.as_list()), output.dtype.name) if known else None
    for consumer in output.consumers():
        if consumer.type == "TensorListStack" and consumer.outputs[0].shape.is_fully_defined():
            return tuple(consumer.outputs[0].shape.as_list()), consumer.outputs[0].dtype.name
    return None


def _build(call: TensorFlowCall, cell: _Cell, rows: tf.Tensor, others: list[tf.Tensor]) -> Results:
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


def _kept(call: TensorFlowCall, sequence: relax.Var, position: int) -> relax.Expr:
    """Return the rows that the loop wrote to a list: all steps, or the last ones."""
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
def _stacked(call: TensorFlowCall) -> Results:
    return call.x()


@converts(CONVERTERS, "TensorListGetItem", reads=(0,))
def _item(call: TensorFlowCall) -> Results:
    rows = shape_of(call.x())
    last = call.integers(1) or (rows[0] - 1,)
    start = min(last[0], rows[0] - 1)
    row = call.emit(relax.op.strided_slice(call.x(), [0], [start], [start + 1], [1]))
    return relax.op.squeeze(row, [0])


def _takes_all(condition: FlatGraph | None, loop: tf.Operation, rows: int) -> bool:
    """Return whether a loop with counters from zero runs over all rows.

    Conditions on data are assumed to continue the loop.
    """
    if condition is None:
        return False
    statics = Statics()
    first = {i: statics.value(t) for i, t in enumerate(loop.inputs) if t.dtype.is_integer}
    known = {i: value for i, value in first.items() if value is not None and value.size == 1}
    goes_on = []
    for step in (rows - 1, rows):
        values = {i: np.full_like(v, step) if not v.any() else v for i, v in known.items()}
        seeds = {condition.inputs[i].name: value for i, value in values.items()}
        goes_on.append(Statics(seeds).value(condition.outputs[0]))
    last, beyond = goes_on
    return (last is None or bool(last)) and (beyond is None or not bool(beyond))


def _is_handle(tensor: tf.Tensor) -> bool:
    return bool(tensor.op.type == "VarHandleOp")


def _read_cell(body: FlatGraph) -> _Cell | None:
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
    from_state = _reachable(body.graph, (body.inputs[i].op.name for i in states))
    from_row = _reachable(body.graph, [read.name])
    hidden = body.inputs[states[0]].shape.as_list()[-1]
    if hidden is None:
        return None
    products: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for operation in body.graph.get_operations():
        if operation.type not in PRODUCTS:
            if operation.type in OTHER_PRODUCTS:
                return None
            continue
        left, right = (t.op.name for t in operation.inputs)
        if right in from_state or right in from_row:
            return None
        if left in from_state or left in from_row:
            products[left in from_state].append(_weight_size(operation))
    gates = sum(width for _, width in products[True]) // hidden
    name, input_size = CELLS.get(gates), products[False][0][0] if products[False] else 0
    sizes = ((products[True], hidden), (products[False], input_size))
    if name is None or not all(_is_one_product(found, d, gates * hidden) for found, d in sizes):
        return None
    if len(states) - (2 if name == "LSTM" else 1) not in (0, 1):
        return None
    arguments = [t.name for t in body.inputs]
    if read.inputs[1].name not in arguments:
        return None
    sequence, counter = (arguments.index(t.name) for t in read.inputs[:2])
    return _Cell(name, input_size, hidden, sequence, counter, weights, states)


def _is_one_product(parts: list[tuple[int, int]], depth: int, width: int) -> bool:
    """Return whether products are parts of a single product with a depth × width matrix."""
    return all(d == depth for d, _ in parts) and sum(w for _, w in parts) == width


def _weight_size(operation: tf.Operation) -> tuple[int, int]:
    sizes = operation.inputs[1].shape.as_list()[-2:]
    transposed = operation.get_attr("transpose_b" if operation.type == "MatMul" else "adj_y")
    depth, width = reversed(sizes) if transposed else sizes
    return int(depth or 0), int(width or 0)


def _reachable(graph: tf.Graph, names: Iterable[str]) -> set[str]:
    reached = set(names)
    for operation in graph.get_operations():
        if any(t.op.name in reached for t in operation.inputs):
            reached.add(operation.name)
    return reached


def _is_state(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.shape.rank == 2)
