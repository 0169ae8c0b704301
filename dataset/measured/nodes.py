"""Small graphs built directly from shapes, with costs from the operator table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dippm.model.graph.model_graph import (
    GRAPH_VERSION,
    Attribute,
    ModelGraph,
    OpNode,
    TensorSpec,
    price,
)
from dippm.model.graph.operators import operator

Shape = tuple[int, ...]

ITEM_BYTES = 4
DTYPE = "float32"
"""Element type of all graphs; the precision of a run is one of its conditions."""


@dataclass(slots=True)
class GraphBuilder:
    """Builds a graph; `add` returns the position of a node for use as a source of later nodes.

    Attributes:
        batch: batch of all shapes.
    """

    batch: int
    nodes: list[OpNode] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    inputs: list[TensorSpec] = field(default_factory=list)
    param_bytes: int = 0

    def input(self, shape: Shape, dtype: str = DTYPE) -> TensorSpec:
        """Declare a user input."""
        spec = TensorSpec(f"x{len(self.inputs)}", shape, dtype)
        self.inputs.append(spec)
        return spec

    def add(
        self,
        op: str,
        sources: Sequence[int | TensorSpec],
        out: Shape,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        weights: int = 0,
        other_parameters: int = 0,
        absorbed: tuple[str, ...] = (),
        dtype: str = DTYPE,
    ) -> int:
        """Append a node.

        Args:
            op: canonical name of the operator.
            sources: nodes (by position) and inputs that it reads, in argument order.
            out: shape of its result.
            attributes: attributes listed in the operator table.
            weights: number of elements in its parameters of rank 2 and more.
            other_parameters: number of elements in its biases and other vectors.
            absorbed: absorbed operators, as in `OpNode`.
            dtype: element type of its result.
        """
        shapes = tuple(
            self.nodes[s].out_shapes[0] if isinstance(s, int) else s.shape for s in sources
        )
        dtypes = tuple(self.nodes[s].dtype if isinstance(s, int) else s.dtype for s in sources)
        node = make_node(
            op,
            shapes,
            out,
            attributes=attributes,
            weights=weights,
            absorbed=absorbed,
            in_dtypes=dtypes,
            dtype=dtype,
        )
        position = len(self.nodes)
        self.nodes.append(node)
        self.edges |= {(s, position) for s in sources if isinstance(s, int)}
        self.param_bytes += (weights + other_parameters) * ITEM_BYTES
        return position

    def graph(self, *, batch_is_symbolic: bool = False) -> ModelGraph:
        """Return the graph, with unread nodes as its results."""
        read = {producer for producer, _ in self.edges}
        results = [i for i in range(len(self.nodes)) if i not in read]
        outputs = [
            TensorSpec(f"y{n}", self.nodes[i].out_shapes[0], self.nodes[i].dtype)
            for n, i in enumerate(results)
        ]
        return ModelGraph(
            nodes=tuple(self.nodes),
            edges=tuple(sorted(self.edges)),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            param_bytes=self.param_bytes,
            unknown_ops={},
            version=GRAPH_VERSION,
            batch=self.batch,
            batch_is_symbolic=batch_is_symbolic,
            output_nodes=tuple(results),
        )


def make_node(
    op: str,
    in_shapes: tuple[Shape, ...],
    out: Shape,
    *,
    attributes: Mapping[str, Attribute] | None = None,
    weights: int = 0,
    absorbed: tuple[str, ...] = (),
    in_dtypes: tuple[str, ...] = (),
    dtype: str = DTYPE,
) -> OpNode:
    """Return a node with its costs; see `GraphBuilder.add`.

    Raises:
        KeyError: if the operator table lacks the operator, or an attribute is missing or unknown.
    """
    row = operator(op)
    if row.name != op:
        raise KeyError(f"no operator {op!r} in the operator table")
    attributes = dict(attributes or {})
    if set(attributes) - set(row.attributes):
        raise KeyError(f"{op} has no attributes {sorted(set(attributes) - set(row.attributes))}")
    return price(
        op,
        attributes,
        in_shapes=in_shapes,
        in_dtypes=in_dtypes or (DTYPE,) * len(in_shapes),
        out_shapes=(out,),
        dtype=dtype,
        param_bytes=weights * ITEM_BYTES,
        absorbed=absorbed,
    )
