"""Static values of TensorFlow tensors, and replacement of tensor lists with known contents.

`Statics` evaluates shape arithmetic without a session. TensorFlow's loops read rows from a list and
write rows to another one: after unrolling, each list is known element by element.
`list_replacements` replaces the read of an element by a slice of the list's source or by the tensor
that was written, and stacking by a `Pack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

MAX_ELEMENTS = 1 << 16
"""Maximum number of elements of a tensor that is evaluated."""
MAX_LIST_ELEMENTS = 1 << 16
"""Maximum number of elements of a list that is tracked."""
Array = np.ndarray[Any, Any]

_FOLDED: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Neg": np.negative,
    "GatherV2": lambda x, index, axis: np.take(x, index, axis=int(axis)),
    "Transpose": np.transpose,
    "Reshape": np.reshape,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Cast": lambda x: x,
    "Squeeze": np.squeeze,
    "Range": np.arange,
    "Pack": lambda *parts: np.stack(parts),
    "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "SelectV2": np.where,
    "ExpandDims": lambda x, axis: np.expand_dims(x, int(axis)),
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "Prod": np.prod,
    "Sum": np.sum,
    "Max": np.max,
    "Min": np.min,
}


class Statics:
    """Evaluates tensors that do not depend on data, with a cache.

    Args:
        known: values of tensors that cannot be evaluated here, by name.
    """

    def __init__(self, known: Mapping[str, Array] | None = None) -> None:
        self.known: dict[str, Array | None] = dict(known or {})

    def value(self, tensor: tf.Tensor) -> Array | None:
        """Return a tensor's value; None if it is unknown or large."""
        if tensor.name not in self.known:
            self.known[tensor.name] = None
            elements = tensor.shape.num_elements()
            if tensor.dtype in (tf.resource, tf.variant):
                return None
            if elements is not None and elements <= MAX_ELEMENTS:
                self.known[tensor.name] = self._evaluate(tensor)
        return self.known[tensor.name]

    def _evaluate(self, tensor: tf.Tensor) -> Array | None:
        found = tf.get_static_value(tensor)
        if found is not None:
            return np.asarray(found)
        operation = tensor.op
        if operation.type == "Size":
            count = operation.inputs[0].shape.num_elements()
            return None if count is None else np.asarray(count)
        if operation.type == "StridedSlice" and tensor.dtype.is_integer:
            return self._strided_slice(operation)
        if operation.type == "LogicalAnd":
            return self._and([self.value(t) for t in operation.inputs])
        function = _FOLDED.get(operation.type) or self._reduction(operation)
        if function is None or not operation.inputs:
            return None
        arguments = [self.value(t) for t in operation.inputs]
        if any(argument is None for argument in arguments):
            return None
        result = np.asarray(function(*arguments))
        return result.astype(tensor.dtype.as_numpy_dtype)

    @staticmethod
    def _and(sides: list[Array | None]) -> Array | None:
        """Evaluate a logical conjunction, which a single false operand decides."""
        if any(side is not None and side.size == 1 and not side for side in sides):
            return np.asarray(False)
        left, right = sides
        return None if left is None or right is None else np.logical_and(left, right)

    def _reduction(self, operation: tf.Operation) -> Callable[..., Array] | None:
        function = _REDUCTIONS.get(operation.type)
        if function is None:
            return None
        keep = operation.get_attr("keep_dims")
        return lambda x, axes: function(x, axis=tuple(np.atleast_1d(axes)), keepdims=keep)

    def _strided_slice(self, operation: tf.Operation) -> Array | None:
        x, begin, end, strides = (self.value(t) for t in operation.inputs)
        if x is None or begin is None or end is None or strides is None or x.ndim != 1:
            return None
        if operation.get_attr("new_axis_mask") or operation.get_attr("ellipsis_mask"):
            return None
        if operation.get_attr("shrink_axis_mask"):
            return np.asarray(x[int(begin[0])])
        start = None if operation.get_attr("begin_mask") else int(begin[0])
        stop = None if operation.get_attr("end_mask") else int(end[0])
        return x[start : stop : int(strides[0])]


# Tensor lists with known contents, replaced by the tensors themselves.


class Nodes(Protocol):
    """The interface for adding nodes to a flat graph."""

    def add(self, wanted: str, op: str, inputs: Sequence[str], **attributes: int) -> NodeDef:
        """Add a node with integer (or type) attributes; return it."""
        ...

    def constant(self, wanted: str, value: int | list[int]) -> str:
        """Add an int32 constant; return the name of its tensor."""
        ...


@dataclass(frozen=True, slots=True)
class _List:
    """Contents of a tensor list.

    Attributes:
        items: elements in order: the name of a tensor, the number of a row of `source`, or None for
            one that is not written yet.
        source: name of the tensor that the list was made from; "" if it was made empty.
    """

    items: tuple[str | int | None, ...]
    source: str = ""

    @property
    def is_untouched(self) -> bool:
        """Whether it consists exactly of the rows of its source."""
        return bool(self.source) and all(item == i for i, item in enumerate(self.items))


def list_replacements(graph: tf.Graph, nodes: Nodes) -> dict[str, str]:
    """Add replacements for reads of known lists; return them by the name of the replaced tensor.

    Args:
        graph: imported graph with shapes.
        nodes: interface for adding nodes to the same graph.
    """
    reader = _Reader(nodes)
    for operation in graph.get_operations():
        handle = _HANDLERS.get(operation.type)
        if handle is not None:
            handle(reader, operation)
    return reader.replaced


class _Reader:
    """Follows the lists of a graph and adds replacements.

    Attributes:
        nodes: interface for adding nodes to the graph.
        statics: evaluator of shape arithmetic.
        lists: contents of known lists, by the name of the tensor that refers to them.
        replaced: replacement by the name of the replaced tensor.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.statics = Statics()
        self.lists: dict[str, _List] = {}
        self.replaced: dict[str, str] = {}

    def list_of(self, operation: tf.Operation) -> _List | None:
        return self.lists.get(operation.inputs[0].name)

    def number(self, tensor: tf.Tensor) -> int | None:
        value = self.statics.value(tensor)
        return int(value) if value is not None and value.size == 1 else None

    def element(self, known: _List, index: int, operation: tf.Operation) -> str | None:
        """Return the tensor of a list element; None if it is unknown."""
        item = known.items[index]
        if isinstance(item, str):
            return item
        name, kind = operation.name, _element_type(operation)
        if item is None:
            return self._zeros(operation, kind)
        bounds = [self.nodes.constant(f"{name}/{i}", [item + (i == 1)]) for i in range(2)]
        step = self.nodes.constant(f"{name}/step", [1])
        masks = {f"{mask}_mask": 0 for mask in ("begin", "end", "ellipsis", "new_axis")}
        node = self.nodes.add(
            f"{name}/row",
            "StridedSlice",
            [known.source, *bounds, step],
            T=kind,
            Index=tf.int32.as_datatype_enum,
            shrink_axis_mask=1,
            **masks,
        )
        return f"{node.name}:0"

    def _zeros(self, operation: tf.Operation, kind: int) -> str | None:
        shape = operation.outputs[0].shape
        if operation.type != "TensorListGetItem" or not shape.is_fully_defined():
            return None
        size = self.nodes.constant(operation.name + "/size", shape.as_list())
        zero = self.nodes.add(
            operation.name + "/zero",
            "Cast",
            [self.nodes.constant(operation.name + "/zero", 0)],
            SrcT=tf.int32.as_datatype_enum,
            DstT=kind,
        )
        index = tf.int32.as_datatype_enum
        node = self.nodes.add(
            operation.name + "/zeros", "Fill", [size, zero.name + ":0"], T=kind, index_type=index
        )
        return f"{node.name}:0"


def _from_tensor(reader: _Reader, operation: tf.Operation) -> None:
    tensor = operation.inputs[0]
    count = tensor.shape[0] if tensor.shape.rank else None
    if count is not None:
        rows: tuple[str | int | None, ...] = tuple(range(count))
        reader.lists[operation.outputs[0].name] = _List(rows, tensor.name)


def _reserve(reader: _Reader, operation: tf.Operation) -> None:
    count = reader.number(operation.inputs[1])
    if count is not None and 0 <= count <= MAX_LIST_ELEMENTS:
        reader.lists[operation.outputs[0].name] = _List((None,) * count)


def _empty(reader: _Reader, operation: tf.Operation) -> None:
    reader.lists[operation.outputs[0].name] = _List(())


def _set(reader: _Reader, operation: tf.Operation) -> None:
    known, index = reader.list_of(operation), reader.number(operation.inputs[1])
    if known is None or index is None or index < 0:
        return
    grown = (*known.items, *(None,) * (index + 1 - len(known.items)))
    items = (*grown[:index], operation.inputs[2].name, *grown[index + 1 :])
    reader.lists[operation.outputs[0].name] = replace(known, items=items)


def _push(reader: _Reader, operation: tf.Operation) -> None:
    known = reader.list_of(operation)
    if known is not None:
        items = (*known.items, operation.inputs[1].name)
        reader.lists[operation.outputs[0].name] = replace(known, items=items)


def _pop(reader: _Reader, operation: tf.Operation) -> None:
    known = reader.list_of(operation)
    if known is not None and known.items:
        reader.lists[operation.outputs[0].name] = replace(known, items=known.items[:-1])
        found = reader.element(known, len(known.items) - 1, operation)
        if found is not None:
            reader.replaced[operation.outputs[1].name] = found


def _get(reader: _Reader, operation: tf.Operation) -> None:
    known, index = reader.list_of(operation), reader.number(operation.inputs[1])
    if known is not None and index is not None and 0 <= index < len(known.items):
        found = reader.element(known, index, operation)
        if found is not None:
            reader.replaced[operation.outputs[0].name] = found


def _stack(reader: _Reader, operation: tf.Operation) -> None:
    known = reader.list_of(operation)
    if known is not None:
        _read_elements(reader, operation, known, range(len(known.items)))


def _gather(reader: _Reader, operation: tf.Operation) -> None:
    known, indices = reader.list_of(operation), reader.statics.value(operation.inputs[1])
    if known is not None and indices is not None:
        _read_elements(reader, operation, known, [int(i) for i in indices.reshape(-1)])


def _read_elements(
    reader: _Reader, operation: tf.Operation, known: _List, indices: Sequence[int]
) -> None:
    """Replace a read of several elements: by the list's source if it reads all of its rows."""
    if not indices or not all(0 <= i < len(known.items) for i in indices):
        return
    whole = list(indices) == list(range(len(known.items)))
    if whole and known.is_untouched:
        reader.replaced[operation.outputs[0].name] = known.source
        return
    if any(known.items[i] is None for i in indices):
        return
    parts = [reader.element(known, i, operation) or "" for i in indices]
    node = reader.nodes.add(
        operation.name + "/stack", "Pack", parts, T=_element_type(operation), N=len(parts), axis=0
    )
    reader.replaced[operation.outputs[0].name] = node.name + ":0"


def _length(reader: _Reader, operation: tf.Operation) -> None:
    known = reader.list_of(operation)
    if known is not None:
        count = reader.nodes.constant(operation.name + "/count", len(known.items))
        reader.replaced[operation.outputs[0].name] = count


def _resize(reader: _Reader, operation: tf.Operation) -> None:
    known, count = reader.list_of(operation), reader.number(operation.inputs[1])
    if known is not None and count is not None and 0 <= count <= MAX_LIST_ELEMENTS:
        items = (*known.items[:count], *(None,) * (count - len(known.items)))
        reader.lists[operation.outputs[0].name] = replace(known, items=items)


def _element_type(operation: tf.Operation) -> int:
    return int(operation.get_attr("element_dtype").as_datatype_enum)


_HANDLERS: dict[str, Callable[[_Reader, tf.Operation], None]] = {
    "TensorListFromTensor": _from_tensor,
    "TensorListReserve": _reserve,
    "EmptyTensorList": _empty,
    "TensorListSetItem": _set,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListGetItem": _get,
    "TensorListStack": _stack,
    "TensorListGather": _gather,
    "TensorListLength": _length,
    "TensorListResize": _resize,
}
"""Function that follows an operation on a list, by operation type."""
