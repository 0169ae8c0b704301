"""R5: global pools and paddings get one spelling."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.prune import prune

_GLOBAL = {"avg_pool": "global_avg_pool", "max_pool": "global_max_pool"}
_REDUCE = {"reduce_mean": "global_avg_pool", "reduce_max": "global_max_pool"}


def unify_pools(draft: Draft) -> None:
    """Replace means over all image axes and one-window pools by global pools; merge pads."""
    before: dict[int, Node] = {}
    for node in draft.nodes:
        if node.op in _REDUCE:
            _from_reduction(draft, node, before)
        elif node.op in _GLOBAL and _has_one_window(node):
            node.op, node.attributes = _GLOBAL[node.op], {}
        if node.op.startswith(("conv", "max_pool", "avg_pool")):
            _merge_pad(draft, node)
    if before:
        pairs = ((before.get(id(node)), node) for node in draft.nodes)
        draft.nodes = [node for pair in pairs for node in pair if node is not None]


def _has_one_window(node: Node) -> bool:
    """Return whether a single window covers the whole image."""
    source = node.inputs[0].shape[2:]
    return (
        all(size == 1 for size in node.out.shape[2:])
        and node.attributes["kernel"] == source
        and not any(node.attributes["padding"])
    )


def _from_reduction(draft: Draft, node: Node, before: dict[int, Node]) -> None:
    """Replace a mean over the image axes by a global pool before the node."""
    source = node.inputs[0]
    rank = len(source.shape)
    if rank not in (4, 5) or node.attributes["axes"] != tuple(range(2, rank)):
        return
    name, out = _REDUCE[node.op], node.out
    if node.attributes["keepdims"]:
        node.op, node.attributes = name, {}
        return
    pooled = Value((*source.shape[:2], *(1,) * (rank - 2)), out.dtype)
    position = draft.nodes.index(node)
    pool = draft.make(name, [source], outputs=[pooled])
    pool.path = node.path
    draft.nodes.insert(position, pool)
    node.op, node.attributes = "reshape", {}
    draft.set_inputs(node, [pooled])


def _merge_pad(draft: Draft, node: Node) -> None:
    pad = producer_of(node.inputs[0], "pad")
    if pad is None or not pad.attributes.get("zero") or node.op == "max_pool":
        return
    padding = _padding_with(node, pad.attributes["widths"])
    if node.op == "conv_transpose" or padding is None:
        return
    node.attributes["padding"] = padding
    draft.set_inputs(node, [pad.inputs[0], *node.inputs[1:]])
    if not pad.out.uses:
        node.absorbed.insert(0, "pad")


def _padding_with(node: Node, widths: Sequence[int]) -> tuple[int, ...] | None:
    """Return a node's padding and that of a pad before it; None if they cannot be one.

    Args:
        node: a convolution or a pooling.
        widths: begin and end by axis, in the order N, C, spatial.
    """
    added, padding = (*widths[4::2], *widths[5::2]), node.attributes["padding"]
    if any(widths[:4]) or len(padding) != len(added):
        return None
    return tuple(p + w for p, w in zip(padding, added, strict=True))


def join_pads(draft: Draft) -> None:
    """Make paddings with zeros part of the convolutions that read them, as PyTorch's layers do.

    Paddings that differ between two sides remain: PyTorch, too, needs a call for them.
    """
    for node in draft.live():
        if node.op in ("conv1d", "conv2d", "conv3d"):
            _join_pad(draft, node)
    prune(draft)


def _join_pad(draft: Draft, node: Node) -> None:
    change = producer_of(node.inputs[0], "transpose")
    pad = producer_of(change.inputs[0] if change else node.inputs[0], "pad")
    if pad is None or not pad.attributes.get("zero"):
        return
    if draft.sole_user(pad.out) is None or draft.sole_user(node.inputs[0]) is None:
        return
    given = pad.attributes["widths"]
    order = change.attributes["permutation"] if change else tuple(range(len(given) // 2))
    padding = _padding_with(node, [w for axis in order for w in given[2 * axis : 2 * axis + 2]])
    if padding is None or given[::2] != given[1::2]:
        return
    node.attributes["padding"] = padding
    source = pad.inputs[0]
    if change is not None:
        draft.set_inputs(change, [source])
        source = Value(tuple(source.shape[axis] for axis in order), source.dtype)
        change.outputs, source.producer = [source], change
    draft.set_inputs(node, [source, *node.inputs[1:]])
