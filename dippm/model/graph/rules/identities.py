"""R4: drop identities, merge views of views, cancel inverse permutations."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.operators import is_elementwise
from dippm.model.graph.rules.prune import prune


def drop_identities(draft: Draft) -> None:
    """Remove nodes that change nothing, and merge chains of reshapes and of transposes."""
    for node in draft.nodes:
        if not node.alive:
            continue
        if node.op in ("reshape", "transpose"):
            _merge_with_producer(draft, node)
        if _is_identity(node):
            draft.bypass(node, node.inputs[0])
        elif node.op == "broadcast":
            _skip_in_elementwise(draft, node)
    prune(draft)


def _is_identity(node: Node) -> bool:
    if len(node.outputs) != 1 or not node.inputs:
        return False
    source, out = node.inputs[0], node.out
    if node.op == "identity":
        return True
    if source.is_static:
        return False
    if node.op in ("reshape", "broadcast", "slice", "repeat", "tile", "pad"):
        return source.shape == out.shape
    if node.op == "transpose":
        return bool(node.attributes["permutation"] == tuple(range(len(out.shape))))
    if node.op == "cast":
        return _is_float(source) == _is_float(out) or source.dtype == out.dtype
    if node.op == "concat":
        return len(node.inputs) == 1
    if node.op in ("max_pool", "avg_pool"):
        kernel, strides = node.attributes["kernel"], node.attributes["strides"]
        return {*kernel, *strides} == {1} and source.shape == out.shape
    return _is_neutral(node)


def _is_float(value: Value) -> bool:
    return "float" in value.dtype


def _is_neutral(node: Node) -> bool:
    """Return whether a node is `x + 0`, `x - 0`, `x * 1`, `x / 1` or `x ** 1`."""
    neutral = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0, "power": 1.0}
    if node.op not in neutral or len(node.inputs) != 2:
        return False
    return node.inputs[1].scalar == neutral[node.op] and node.inputs[0].shape == node.out.shape


def _merge_with_producer(draft: Draft, node: Node) -> None:
    before = producer_of(node.inputs[0], node.op)
    if before is None:
        return
    if node.op == "transpose":
        inner, outer = before.attributes["permutation"], node.attributes["permutation"]
        node.attributes["permutation"] = tuple(inner[axis] for axis in outer)
        if not (before.attributes.get("layout") and node.attributes.get("layout")):
            node.attributes.pop("layout", None)
    draft.set_inputs(node, before.inputs)


def _skip_in_elementwise(draft: Draft, node: Node) -> None:
    """Drop a broadcast before an element-wise operator with another argument of full size."""
    for user in list(node.out.uses):
        if not is_elementwise(user.op) or user.inputs.count(node.out) > 1:
            continue
        rank = len(user.out.shape)
        others = [v for v in user.inputs if v is not node.out and v.shape == user.out.shape]
        if others and len(node.inputs[0].shape) == rank:
            inputs = [node.inputs[0] if v is node.out else v for v in user.inputs]
            draft.set_inputs(user, inputs)
