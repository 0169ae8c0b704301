"""`ModelGraph`: the common form of the models of all frameworks.

Sizes are those at the batch of the conversion. If that batch is a marker (a prime that divides no
other size, see `InputSpec`), `at_batch` returns the graph for any batch without another conversion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from dippm.base.progress import counted
from dippm.errors import ConditionsError
from dippm.model.graph.calls import CallSequence, batch_rescaler
from dippm.model.graph.draft import item_bytes
from dippm.model.graph.macs import real_flops, real_macs
from dippm.model.graph.operators import operator
from dippm.model.graph.program import Program

if TYPE_CHECKING:
    import networkx

Attribute = int | float | str | tuple[int, ...]
Shape = tuple[int, ...]

GRAPH_VERSION = "2"
"""Version of the canonical rules and the operator table. Raise it whenever a graph changes."""

STATIC = "static:"
"""Prefix in `OpNode.absorbed` of work on parameters alone, which every eager pass repeats."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, static shape (batch included) and dtype of a model input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class OpNode:
    """One operator.

    Attributes:
        op: canonical name, see `dippm.model.graph.operators`.
        attributes: only those that the operator table lists for this operator.
        in_shapes: shapes of the activations read, in argument order, without parameters.
        out_shapes: shapes of the results; images are NCHW in every framework.
        dtype: element type of the first result.
        macs: multiply-accumulates of real numbers, 0 if the operator has none; a complex one
            counts as four.
        flops: 2 · macs + element-wise operations.
        bytes_read: bytes of the activations read, without parameters.
        bytes_written: bytes of the results.
        param_bytes: bytes of the weights of rank 2 and more that it reads (exporters differ in
            whether they write biases, so these are not counted).
        absorbed: operators that the canonical rules folded in, in execution order; ignored in
            comparisons, but launched in eager execution. See `kernels`.
        in_dtypes: element type of each activation read.
        path: path of the module or layer, see `RawOperator.path`; ignored in comparisons, because
            the same model has other paths in another framework.
    """

    op: str
    attributes: Mapping[str, Attribute]
    in_shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    dtype: str
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    param_bytes: int
    absorbed: tuple[str, ...] = field(default=(), compare=False)
    in_dtypes: tuple[str, ...] = ()
    path: str = field(default="", compare=False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Operators that eager execution launches for this node, in order; empty for a view.

        For convolutions, dense and recurrent layers `absorbed` lists the operators that follow.
        For activations, norms and attention it lists the operators they were spelled with, which
        run in their place. Work on parameters alone (prefix `STATIC`) runs before either.
        """
        if is_view(self.op, self.attributes):
            return ()
        static = tuple(a.removeprefix(STATIC) for a in self.absorbed if a.startswith(STATIC))
        rest = tuple(a for a in self.absorbed if not a.startswith(STATIC))
        if operator(self.op).category in ("compute", "recurrent") and self.op != "attention":
            return (*static, self.op, *rest)
        return (*static, *(rest or (self.op,)))


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Operators in post-order, with their data flow.

    Attributes:
        nodes: the operators, producers before consumers.
        edges: (producer, consumer) positions in `nodes`, sorted and unique.
        inputs: user inputs, batch included.
        outputs: results of the model, batch included.
        param_bytes: bytes of the parameters that are read, biases included, tied weights once.
        unknown_ops: operators without a canonical name, with their counts; they stay in `nodes`.
        version: version of the canonical rules; checkpoints refuse another one.
        batch: batch size of the shapes.
        batch_is_symbolic: whether other batches are possible; false if the file fixes the batch.
        output_nodes: position of the node of each output; -1 for an output that is an input.
        notes: remarks on the conversion for the user, see `RawGraph.notes`.
        program: the model as its framework runs it, at the batch of the conversion, from which
            memory use follows; None for a graph that was not read from a file.
        calls: the framework's operator calls, at the batch of the conversion, from which the
            kernels follow; None as above.
        converted: the graph at the batch of the conversion, whose sizes show which of them follow
            the batch; None for that graph itself.
    """

    nodes: tuple[OpNode, ...]
    edges: tuple[tuple[int, int], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    param_bytes: int
    unknown_ops: Mapping[str, int]
    version: str
    batch: int
    batch_is_symbolic: bool = True
    output_nodes: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    program: Program | None = field(default=None, compare=False, repr=False)
    calls: CallSequence | None = field(default=None, compare=False, repr=False)
    converted: ModelGraph | None = field(default=None, compare=False, repr=False)

    @property
    def as_converted(self) -> ModelGraph:
        """Return the graph at the batch of the conversion."""
        return self.converted or self

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one pass at this batch."""
        return sum(node.macs for node in self.nodes)

    @property
    def flops(self) -> int:
        """Floating-point operations of one pass at this batch, element-wise ones included."""
        return sum(node.flops for node in self.nodes)

    @property
    def runs_nothing(self) -> bool:
        """Whether a pass launches no kernel: the model only views its inputs, or is empty."""
        return not any(node.kernels for node in self.nodes if node.op not in ("create", "random"))

    def histogram(self) -> dict[str, int]:
        """Return the number of nodes of each operator, most frequent first."""
        return dict(Counter(node.op for node in self.nodes).most_common())

    def at_batch(self, batch: int) -> ModelGraph:
        """Return the graph for another batch size.

        Sizes of the conversion say what follows the batch, so it starts from those, whatever batch
        this graph has.

        Raises:
            ConditionsError: if the batch is not positive, or the model file fixes another one.
        """
        if batch == self.batch:
            return self
        if batch < 1:
            raise ConditionsError(f"batch must be at least 1, got {batch}", "Give a whole number.")
        if not self.batch_is_symbolic:
            raise ConditionsError(
                f"the model file fixes batch {self.batch}, got {batch}",
                "Export the model again with a dynamic batch.",
            )
        source = self.as_converted
        if batch == source.batch:
            return source
        size = batch_rescaler(source.batch, batch)
        shape = cache(lambda sizes: tuple(size(n) for n in sizes))
        return replace(
            source,
            nodes=tuple(
                _node_at(node, size, shape)
                for node in counted(source.nodes, len(source.nodes), f"batch {batch:,}: operator")
            ),
            inputs=tuple(replace(t, shape=shape(t.shape)) for t in source.inputs),
            outputs=tuple(replace(t, shape=shape(t.shape)) for t in source.outputs),
            batch=batch,
            converted=source,
        )

    def to_networkx(self) -> networkx.DiGraph:
        """Return a directed graph whose nodes have the fields of `OpNode`."""
        import networkx

        graph = networkx.DiGraph(batch=self.batch, version=self.version)
        for i, node in enumerate(self.nodes):
            fields = {name: getattr(node, name) for name in OpNode.__dataclass_fields__}
            graph.add_node(i, **fields)
        graph.add_edges_from(self.edges)
        return graph


def price(
    op: str,
    attributes: Mapping[str, Attribute],
    *,
    in_shapes: tuple[Shape, ...],
    in_dtypes: tuple[str, ...],
    out_shapes: tuple[Shape, ...],
    dtype: str,
    param_bytes: int,
    absorbed: tuple[str, ...] = (),
    path: str = "",
) -> OpNode:
    """Return a node with its costs, which depend on attributes and shapes alone."""
    row = operator(op)
    macs = row.macs(attributes, in_shapes, out_shapes) * real_macs(dtype) if row.macs else 0
    moves_data = not is_view(op, attributes)
    written = sum(prod(s) for s in out_shapes) * item_bytes(dtype) if moves_data else 0
    read = 0
    if moves_data:
        read = sum(prod(s) * item_bytes(d) for s, d in zip(in_shapes, in_dtypes, strict=True))
    elements = in_shapes if row.category in ("reduction", "pool") else out_shapes
    each = row.flops_per_output
    if row.category == "elementwise":
        each *= real_flops(op, dtype)
    flops = 2 * macs + each * (prod(elements[0]) if elements else 0)
    return OpNode(
        op,
        attributes,
        in_shapes,
        out_shapes,
        dtype,
        macs,
        flops,
        read,
        written,
        param_bytes,
        absorbed,
        in_dtypes,
        path,
    )


def is_view(op: str, attributes: Mapping[str, Attribute]) -> bool:
    """Return whether a node only changes the shape of its argument, and moves no data."""
    if op == "transpose" or op == "reshape":
        return not attributes.get("copies", 0)
    return operator(op).category == "view"


def _node_at(node: OpNode, size: Callable[[int], int], shape: Callable[[Any], Shape]) -> OpNode:
    attributes = {
        name: size(value) if isinstance(value, int) else value
        for name, value in node.attributes.items()
    }
    return price(
        node.op,
        attributes,
        in_shapes=tuple(shape(s) for s in node.in_shapes),
        in_dtypes=node.in_dtypes or (node.dtype,) * len(node.in_shapes),
        out_shapes=tuple(shape(s) for s in node.out_shapes),
        dtype=node.dtype,
        param_bytes=node.param_bytes,
        absorbed=node.absorbed,
        path=node.path,
    )
