"""R9: post-order with a tie-break that depends on structure only."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node
from dippm.model.graph.operators import operator


def post_order(draft: Draft) -> list[Node]:
    """Return the live nodes, producers first, in the order of a walk back from the results.

    Arguments are visited in their order; those of commutative operators the deepest first, so
    that `a + b` and `b + a` give one order.
    """
    draft.compact()
    depth: dict[int, int] = {}
    for node in draft.nodes:
        before = [depth.get(id(v.producer), 0) for v in node.inputs if v.producer]
        depth[id(node)] = 1 + max(before, default=0)
    ordered: list[Node] = []
    seen: set[int] = set()
    roots = [v.producer for v in (*draft.beside, *draft.outputs) if v.producer is not None]
    for root in roots:
        _visit(root, depth, seen, ordered)
    return ordered


def _visit(root: Node, depth: dict[int, int], seen: set[int], ordered: list[Node]) -> None:
    if id(root) in seen:
        return
    stack = [(root, iter(_arguments(root, depth)))]
    seen.add(id(root))
    while stack:
        node, pending = stack[-1]
        child = next((c for c in pending if id(c) not in seen), None)
        if child is None:
            ordered.append(node)
            stack.pop()
        else:
            seen.add(id(child))
            stack.append((child, iter(_arguments(child, depth))))


def _arguments(node: Node, depth: dict[int, int]) -> list[Node]:
    producers = [v.producer for v in node.inputs if v.producer is not None]
    if operator(node.op).commutative:
        producers.sort(key=lambda p: -depth[id(p)])
    return producers
