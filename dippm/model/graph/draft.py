"""`Draft`: the mutable graph that the canonical rules work on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element; 1 for 8-bit floats, 4 for an unknown type."""
    return ITEM_BYTES.get(dtype, 1 if dtype.startswith("float8") else 4)


class Value:
    """A tensor in a draft.

    Attributes:
        shape: sizes at the batch of the draft.
        dtype: element type in the raw graph.
        scalar: value of a constant with one element, else None.
        is_static: whether it depends on parameters and constants only.
        roots: positions of the parameters that a static value is computed from.
        static_work: operators that compute a static value anew on every forward pass.
        producer: node that computes it; None for inputs and static values.
        uses: nodes that read it, one entry for each argument position.
    """

    __slots__ = (
        "dtype",
        "is_static",
        "name",
        "producer",
        "roots",
        "scalar",
        "shape",
        "static_work",
        "uses",
    )

    def __init__(self, shape: Shape, dtype: str, *, name: str = "") -> None:
        self.shape, self.dtype, self.name = shape, dtype, name
        self.scalar: float | None = None
        self.is_static = False
        self.roots: frozenset[int] = frozenset()
        self.static_work: tuple[str, ...] = ()
        self.producer: Node | None = None
        self.uses: list[Node] = []

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def as_static(self, shape: Shape) -> Value:
        """Return this static value in another shape, which needs no node."""
        view = Value(shape, self.dtype, name=self.name)
        view.is_static, view.roots, view.static_work = True, self.roots, self.static_work
        return view

    def __repr__(self) -> str:
        return f"<{'static ' if self.is_static else ''}{self.dtype}{list(self.shape)}>"


class Node:
    """An operator in a draft; `alive` turns false when a rule removes it.

    Attributes:
        path: path of its module; a node that a rule joins from several keeps its own.
        in_place: whether it writes into the memory of its first argument.
        origin: position of the raw operator that it was read from; -1 if a rule created it.
        held_until: position of the last raw operator during which the model's own code refers to
            the result; -1 if unknown.
    """

    __slots__ = (
        "absorbed",
        "alive",
        "attributes",
        "held_until",
        "in_place",
        "inputs",
        "op",
        "origin",
        "outputs",
        "path",
    )

    def __init__(
        self, op: str, inputs: Sequence[Value], outputs: Sequence[Value], attributes: dict[str, Any]
    ) -> None:
        self.op = op
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.attributes = attributes
        self.absorbed: list[str] = []
        self.alive = True
        self.path = ""
        self.in_place = False
        self.origin = -1
        self.held_until = -1

    @property
    def out(self) -> Value:
        """The first result."""
        return self.outputs[0]

    @property
    def data_inputs(self) -> list[Value]:
        """Arguments that are not static."""
        return [v for v in self.inputs if not v.is_static]

    def __repr__(self) -> str:
        return f"{self.outputs} = {self.op}({self.inputs}) {self.attributes}"


class Draft:
    """Nodes in an order that respects data flow, and their values.

    Attributes:
        nodes: all nodes; dead ones remain until `compact`.
        inputs: user inputs.
        outputs: results of the model.
        unread: values that every pass computes although no node reads them.
        parameters: shape and dtype of each parameter, by its position in the raw graph.
        batch: see `RawGraph.batch`.
        path: path given to new nodes.
        origin: origin given to new nodes.
    """

    def __init__(self, batch: int) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.unread: list[Value] = []
        self.parameters: dict[int, tuple[Shape, str]] = {}
        self.batch = batch
        self.path = ""
        self.origin = -1

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        *,
        outputs: Sequence[Value] | None = None,
        shape: Shape | None = None,
        dtype: str | None = None,
        **attributes: Any,
    ) -> Node:
        """Append a node that writes to `outputs`, or to one new value of `shape`."""
        node = self.make(op, inputs, outputs=outputs, shape=shape, dtype=dtype, **attributes)
        self.nodes.append(node)
        return node

    def make(
        self,
        op: str,
        inputs: Sequence[Value],
        *,
        outputs: Sequence[Value] | None = None,
        shape: Shape | None = None,
        dtype: str | None = None,
        **attributes: Any,
    ) -> Node:
        """Return a wired node that is not yet in `nodes`; see `emit`."""
        if outputs is None:
            assert shape is not None
            outputs = [Value(shape, dtype or inputs[0].dtype)]
        node = Node(op, inputs, outputs, attributes)
        node.path, node.origin = self.path, self.origin
        for value in node.inputs:
            value.uses.append(node)
        for value in node.outputs:
            value.producer = node
        return node

    def set_inputs(self, node: Node, inputs: Iterable[Value]) -> None:
        """Replace the arguments of a node."""
        for value in node.inputs:
            value.uses.remove(node)
        node.inputs = list(inputs)
        for value in node.inputs:
            value.uses.append(node)

    def remove(self, node: Node) -> None:
        """Remove a node whose results nothing reads any more."""
        if not node.alive:
            return
        node.alive = False
        for value in node.inputs:
            value.uses.remove(node)

    def bypass(self, node: Node, value: Value) -> None:
        """Remove a node with one result and give its readers `value` instead."""
        self.replace(node.out, value)
        self.remove(node)

    def replace(self, old: Value, new: Value) -> None:
        """Replace `old` by `new` in every reader."""
        for user in old.uses:
            user.inputs = [new if v is old else v for v in user.inputs]
        new.uses.extend(old.uses)
        old.uses = []
        self.outputs = [new if v is old else v for v in self.outputs]
        self.unread = [new if v is old else v for v in self.unread]

    def is_output(self, value: Value) -> bool:
        """Return whether the model returns this value."""
        return any(v is value for v in self.outputs)

    def sole_user(self, value: Value) -> Node | None:
        """Return the only reader of a value; None if there are several or the model returns it."""
        if len(value.uses) != 1 or self.is_output(value):
            return None
        return value.uses[0]

    def live(self) -> list[Node]:
        """Return the nodes that are alive, in order."""
        return [node for node in self.nodes if node.alive]

    def compact(self) -> None:
        """Drop dead nodes."""
        self.nodes = self.live()


def producer_of(value: Value, *ops: str) -> Node | None:
    """Return the node that computes a value if its operator is one of `ops`, else None."""
    node = value.producer
    return node if node is not None and node.alive and node.op in ops else None
