"""R9, first half: remove nodes with unread results."""

from __future__ import annotations

from dippm.model.graph.draft import Draft


def prune(draft: Draft) -> None:
    """Remove nodes without readers, consumers first, and drop all dead nodes."""
    results = {id(value) for value in (*draft.outputs, *draft.unread)}
    for node in reversed(draft.nodes):
        if node.alive and not any(v.uses or id(v) in results for v in node.outputs):
            draft.remove(node)
    draft.compact()
