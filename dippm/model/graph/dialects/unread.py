"""Layers whose result nobody reads: the text branch of a last block, a head that is not returned.

Eager PyTorch runs what is written, so they are nodes beside the graph, with what follows them. What
is dead without a layer (a mask, a shape) is no node: it costs next to nothing. Other frameworks
prune before they run.
"""

from __future__ import annotations

from dippm.model.graph.dialects.tables import multiplies
from dippm.model.relax.raw_graph import RawGraph


def unread_results(raw: RawGraph) -> tuple[int, ...]:
    """Return the positions of the values that unread layers end in; empty unless they are run."""
    if not raw.runs_unread:
        return ()
    needed = set(raw.outputs)
    dead = []
    for operator in reversed(raw.operators):
        if needed.isdisjoint(operator.outputs):
            dead.append(operator)
        else:
            needed.update(operator.inputs)
    depends = set(raw.inputs)
    if any(multiplies(operator) for operator in dead):
        for operator in raw.operators:
            if not depends.isdisjoint(operator.inputs):
                depends.update(operator.outputs)
    worked: set[int] = set()
    read: set[int] = set()
    for operator in reversed(dead):
        layer = multiplies(operator) and not depends.isdisjoint(operator.inputs)
        if layer or not worked.isdisjoint(operator.inputs):
            worked.update(operator.outputs)
            read.update(operator.inputs)
    return tuple(sorted(worked - read))
