"""R9, first half: nodes that nothing reads are dead."""

from __future__ import annotations

from dippm.model.graph.draft import Draft


def prune(draft: Draft) -> None:
    """Remove nodes without readers, consumers first; forget all dead nodes."""
    results = {id(value) for value in (*draft.outputs, *draft.beside)}
    for node in reversed(draft.nodes):
        if node.alive and not any(v.uses or id(v) in results for v in node.outputs):
            draft.remove(node)
    draft.compact()
