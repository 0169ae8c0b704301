"""`Tracing`: the interface of a trace for control flow, sequences and rebatching."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import onnx

from dippm.model.relax.onnx.values import (
    Tensor,
    TracedStep,
    constant,
    plain_attribute,
    stored_tensor,
)


class Tracing(Protocol):
    """The methods of `trace.Tracer` that handlers of operators use."""

    marker: int
    values: dict[str, Tensor]
    lists: dict[str, list[Tensor]]
    steps: list[TracedStep]
    notes: dict[str, None]

    def walk(self, block: Block) -> None:
        """Trace the nodes of a block; names that they write stay visible."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Hide names of the block afterwards; `name` distinguishes runs of the same block."""

    def write(self, name: str, value: Tensor | list[Tensor]) -> None:
        """Bind a name to a tensor or a sequence."""

    def read(self, name: str, reader: str) -> Tensor | None:
        """Return the tensor bound to a name; None for an absent optional argument."""

    def need(self, node: onnx.NodeProto, position: int) -> Tensor:
        """Return a required argument."""

    def apply(
        self, operator: str, inputs: Sequence[Tensor | None], name: str, **attributes: Any
    ) -> Tensor:
        """Trace an operator that is not in the file; return its only result."""

    def apply_all(
        self,
        operator: str,
        inputs: Sequence[Tensor | None],
        name: str,
        count: int,
        **attributes: Any,
    ) -> list[Tensor]:
        """Trace an operator that is not in the file; return its results."""

    def opset(self) -> int:
        """Opset of the operators that `apply` writes."""

    def is_read(self, name: str) -> bool:
        """Return whether an operator or the model's results read a name."""

    def note(self, text: str) -> None:
        """Add a note on an assumption."""

    def open_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs that tensors depend on and that may contain sizes or axes."""


# A graph or inner graph of an ONNX file, parsed once for all its runs.


class Block:
    """The nodes of one graph with their attributes, and its stored tensors.

    Attributes:
        graph: the graph in the file.
        nodes: nodes with their attributes as Python values; inner graphs as blocks.
        stored: initializers and constants by name.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.stored: dict[str, Tensor] = {t.name: stored_tensor(t) for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            self.stored[sparse.values.name] = Tensor(
                sparse.values.name,
                tuple(sparse.dims),
                sparse.values.data_type,
                is_learned=True,
                is_parameter=True,
            )
        self.nodes: list[tuple[onnx.NodeProto, dict[str, Any]]] = []
        for node in graph.node:
            if node.op_type == "Constant" and node.output and node.attribute:
                self.stored[node.output[0]] = constant(node)
            else:
                attributes = {a.name: plain_attribute(a) for a in node.attribute}
                self.nodes.append((node, {k: _read(v) for k, v in attributes.items()}))

    def count(self) -> int:
        """Return the number of operators, including inner graphs."""
        inner = (v for _, a in self.nodes for v in a.values() if isinstance(v, Block))
        return len(self.nodes) + sum(block.count() for block in inner)

    def names_read(self) -> set[str]:
        """Return the names that operators or results read, including inner graphs."""
        names = {value.name for value in self.graph.output}
        for node, attributes in self.nodes:
            names.update(node.input)
            for value in attributes.values():
                if isinstance(value, Block):
                    names |= value.names_read()
        return names


def _read(value: Any) -> Any:
    return Block(value) if isinstance(value, onnx.GraphProto) else value
