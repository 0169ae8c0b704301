"""R9, second half: nodes that compute the same from the same are one node."""

from __future__ import annotations

from typing import Any

from dippm.graph.draft import Draft, Node
from dippm.graph.operators import operator

_NEVER = frozenset({"random", "slice", "dynamic_slice", "roll", "flip", "pad", "clip"})
"""Their nodes do not keep which part or bounds they take, so equal nodes may differ."""


def merge_duplicates(draft: Draft) -> None:
    """Merge nodes with equal operator, attributes and arguments into the first of them."""
    first: dict[Any, Node] = {}
    for node in draft.nodes:
        if not node.alive or node.op in _NEVER:
            continue
        arguments = [id(v) for v in node.inputs]
        if operator(node.op).commutative:
            arguments.sort()
        key = (
            node.op,
            tuple(sorted(node.attributes.items())),
            tuple(arguments),
            tuple((v.shape, v.dtype) for v in node.outputs),
        )
        kept = first.setdefault(key, node)
        if kept is not node:
            for old, new in zip(node.outputs, kept.outputs, strict=True):
                draft.replace(old, new)
            draft.remove(node)
    draft.compact()
