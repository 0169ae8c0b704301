"""A graph or inner graph of an ONNX file, read once however often it is run."""

from __future__ import annotations

from typing import Any

import onnx

from dippm.model.relax.onnx.values import Tensor, constant, plain_attribute, stored


class Block:
    """The nodes of one graph with their attributes, and what it stores.

    Attributes:
        graph: in the file.
        nodes: each with its attributes as Python values; inner graphs as blocks.
        stored: initializers and constants by name.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.stored: dict[str, Tensor] = {t.name: stored(t) for t in graph.initializer}
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
        """Return how many operators it has, those of inner graphs included."""
        inner = (v for _, a in self.nodes for v in a.values() if isinstance(v, Block))
        return len(self.nodes) + sum(block.count() for block in inner)

    def names_read(self) -> set[str]:
        """Return the names that operators or results read, those of inner graphs included."""
        names = {value.name for value in self.graph.output}
        for node, attributes in self.nodes:
            names.update(node.input)
            for value in attributes.values():
                if isinstance(value, Block):
                    names |= value.names_read()
        return names


def _read(value: Any) -> Any:
    return Block(value) if isinstance(value, onnx.GraphProto) else value
