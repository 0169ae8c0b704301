"""R2 and R10: drop biases; fold batch norms into the convolution or dense layer before them."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.layout import drop_identities
from dippm.model.graph.rules.prune import prune

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose", "deform_conv2d")
_SCALING = ("multiply", "divide")
_SHIFTING = ("add", "subtract")


def fold_affine(draft: Draft) -> None:
    """Drop biases; fold batch norms into their layer, also those spelled as several operators."""
    for node in draft.nodes:
        if node.alive and node.op in _SHIFTING:
            _drop_bias(draft, node)
    prune(draft)
    for node in draft.nodes:
        if node.alive and node.op in (*_SCALING, *_SHIFTING):
            _join_batch_norm(draft, node)
    prune(draft)
    for node in draft.nodes:
        if node.alive and node.op == "batch_norm":
            _fold_norm(draft, node)
    drop_identities(draft)


def is_per_channel(value: Value, shape: tuple[int, ...], axis: int) -> bool:
    """Return whether a static value has one entry per channel of `shape`, or a single one."""
    if not value.is_static:
        return False
    aligned = (1,) * (len(shape) - len(value.shape)) + value.shape
    return all(size == 1 or (i == axis and size == shape[i]) for i, size in enumerate(aligned))


def _operands(node: Node) -> tuple[Value, Value] | None:
    """Return (activation, static) of an element-wise node; None for other operands."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if right.is_static and not left.is_static:
        return left, right
    if left.is_static and not right.is_static and node.op in ("add", "multiply"):
        return right, left
    return None


def _drop_bias(draft: Draft, node: Node) -> None:
    pair = _operands(node)
    if pair is None:
        return
    source, bias = pair
    if bias.scalar is not None or draft.sole_user(source) is None:
        return
    if (owner := producer_of(source, *CONVOLUTIONS)) is not None:
        is_bias = bias.size == source.shape[1] and is_per_channel(bias, source.shape, 1)
    else:
        owner = _product_behind(source)
        is_bias = owner is not None and _covers(bias, source.shape, owner.out.shape[-1])
    if is_bias:
        draft.bypass(node, source)


def _product_behind(value: Value) -> Node | None:
    """Return the product with a parameter whose result a value is a view of."""
    while view := producer_of(value, "reshape"):
        value = view.inputs[0]
    dense = producer_of(value, "dense")
    product = producer_of(value, "batch_matmul")
    weighted = product is not None and any(v.is_static for v in product.inputs)
    return dense or (product if weighted else None)


def _covers(bias: Value, shape: tuple[int, ...], features: int) -> bool:
    """Return whether a bias has one entry per feature; features may span several last axes."""
    sizes = list(bias.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return bias.size == features and tuple(sizes) == shape[len(shape) - len(sizes) :]


def _join_batch_norm(draft: Draft, last: Node) -> None:
    """Replace a chain such as `(x - mean) * scale + offset` by one `batch_norm`."""
    user = draft.sole_user(last.out)
    if user is not None and user.op in (*_SCALING, *_SHIFTING) and _operands(user):
        return
    chain: list[Node] = []
    node: Node | None = last
    while node is not None and node.op in (*_SCALING, *_SHIFTING):
        pair = _operands(node)
        if pair is None or (chain and draft.sole_user(node.out) is None):
            break
        rank = len(node.out.shape)
        if (
            rank < 2
            or not is_per_channel(pair[1], node.out.shape, 1)
            or pair[0].shape != (node.out.shape)
        ):
            break
        chain.append(node)
        node = pair[0].producer
    if len(chain) < 2 or not _looks_like_norm(chain):
        return
    source = _operands(chain[-1])
    assert source is not None
    rank = len(last.out.shape)
    last.op, last.attributes = "batch_norm", {"axis": 1}
    last.absorbed = []
    draft.set_inputs(last, [source[0]])
    assert rank >= 2


def _looks_like_norm(chain: list[Node]) -> bool:
    """Return whether a chain on images scales by a vector and shifts by a vector."""
    vectors = [(n.op, p[1].size > 1) for n in chain if (p := _operands(n))]
    scales = any(op in _SCALING and wide for op, wide in vectors)
    shifts = any(op in _SHIFTING and wide for op, wide in vectors)
    return scales and shifts and len(chain[0].out.shape) in (4, 5)


def _fold_norm(draft: Draft, node: Node) -> None:
    source = node.inputs[0]
    value = source
    while (view := producer_of(value, "reshape")) and draft.sole_user(value):
        value = view.inputs[0]
    owner = producer_of(source, *CONVOLUTIONS) or producer_of(value, "dense")
    if owner is None or draft.sole_user(source) is None:
        return
    if owner.op in CONVOLUTIONS and node.attributes.get("axis", 1) != 1:
        return
    if owner.out is not source and draft.sole_user(owner.out) is None:
        return
    owner.absorbed.append("batch_norm")
    draft.bypass(node, source)
