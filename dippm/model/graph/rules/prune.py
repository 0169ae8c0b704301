"""R9: nodes with unread results go, and equal views of the same value become one node.

Operators that compute are never merged, even with equal arguments: each launches a kernel. Some
exporters store equal weights once, so merging would make the graph depend on weight values.
"""

from __future__ import annotations

from typing import Any

from dippm.model.graph.draft import Draft, Node


def prune(draft: Draft) -> None:
    """Remove nodes without readers, consumers first, and drop all dead nodes."""
    results = {id(value) for value in (*draft.outputs, *draft.unread)}
    for node in reversed(draft.nodes):
        if node.alive and not any(v.uses or id(v) in results for v in node.outputs):
            draft.remove(node)
    draft.compact()


_MERGED = ("transpose", "reshape", "broadcast", "split")
"""Operators that attributes and shapes describe completely; slices do not keep their start."""


def merge_duplicates(draft: Draft) -> None:
    """Merge views with equal attributes and arguments into the first of them."""
    first: dict[Any, Node] = {}
    for node in draft.nodes:
        if not node.alive or node.op not in _MERGED:
            continue
        key = (
            node.op,
            tuple(sorted(node.attributes.items())),
            tuple(id(v) for v in node.inputs),
            tuple((v.shape, v.dtype) for v in node.outputs),
        )
        kept = first.setdefault(key, node)
        if kept is not node:
            for old, new in zip(node.outputs, kept.outputs, strict=True):
                draft.replace(old, new)
            draft.remove(node)
    draft.compact()
