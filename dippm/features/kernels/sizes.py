"""What rules read of a node: its sizes and its attributes, as numbers."""

from __future__ import annotations

from math import prod

from dippm.graph.draft import item_bytes
from dippm.graph.model_graph import OpNode


def elements(node: OpNode) -> int:
    """Return the elements of the first result."""
    return prod(node.out_shapes[0]) if node.out_shapes else 0


def weight_elements(node: OpNode) -> float:
    """Return the elements of the parameters."""
    return node.param_bytes / item_bytes(node.dtype)


def number(node: OpNode, name: str, default: object = 1) -> float:
    """Return an attribute that is one number; 1 if it is none."""
    value = node.attributes.get(name, default)
    return float(value) if isinstance(value, int | float) else 1.0


def sizes(node: OpNode, name: str) -> tuple[int, ...]:
    """Return an attribute that is one number per axis; (1,) if there is none."""
    value = node.attributes.get(name, (1,))
    if isinstance(value, tuple | list):
        return tuple(int(v) for v in value) or (1,)
    return (int(value),) if isinstance(value, int | float) else (1,)
