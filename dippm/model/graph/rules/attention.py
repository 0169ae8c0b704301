"""R7, second half: product, scale, mask, softmax, product → `attention`."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.prune import prune

_ON_SCORES = (
    "multiply",
    "divide",
    "add",
    "subtract",
    "where",
    "masked_fill",
    "maximum",
    "minimum",
    "reshape",
    "cast",
    "clip",
    "broadcast",
)
_VIEWS = ("reshape", "transpose")
_LONGEST = 12


def recognise_attention(draft: Draft) -> None:
    """Replace the operators of each softmax attention by one node."""
    for node in list(draft.nodes):
        if node.alive and node.op == "batch_matmul":
            _recognise(draft, node)
    prune(draft)


def _recognise(draft: Draft, last: Node) -> None:
    weights, value = last.inputs
    softmax, after = _softmax_before(draft, weights)
    if softmax is None:  # value · weightsᵀ
        weights, value = _skip_transpose(draft, value), weights
        softmax, after = _softmax_before(draft, weights)
    if softmax is None or softmax.attributes["axis"] != len(softmax.out.shape) - 1:
        return
    found = _scores(draft, softmax.inputs[0])
    if found is None:
        return
    product, biases, on_scores = found
    query, key = product.inputs
    if product.out.shape[-2:] != softmax.out.shape[-2:]:
        return
    query, scaled_query = _skip_scale(draft, query)
    key, scaled_key = _skip_scale(draft, key)
    work = [*scaled_query, *scaled_key, "batch_matmul", *on_scores, "softmax", *after]
    shape = product.out.shape
    last.attributes = {
        "heads": _heads(shape, draft.batch),
        "query_length": shape[-2],
        "key_length": shape[-1],
        "head_dim": product.attributes["k"],
        "value_dim": last.out.size * shape[-1] // product.out.size,
    }
    last.op, last.absorbed = "attention", [*work, "batch_matmul"]
    draft.set_inputs(last, [query, _skip_transpose(draft, key), value, *biases])


def _heads(shape: tuple[int, ...], batch: int) -> int:
    """Return the number of heads: the axis before the lengths, or folded into the batch."""
    if len(shape) >= 4:
        return shape[-3]
    if len(shape) == 3 and shape[0] % batch == 0:
        return shape[0] // batch
    return 1


def _softmax_before(draft: Draft, value: Value) -> tuple[Node | None, list[str]]:
    operators: list[str] = []
    for _ in range(4):
        softmax = producer_of(value, "softmax")
        if draft.sole_user(value) is None:
            return None, []
        if softmax is not None:
            return softmax, operators
        node = producer_of(value, "reshape", "cast", "broadcast", "multiply", "divide", "where")
        if node is None:
            return None, []
        if node.op not in ("reshape", "broadcast"):
            operators.insert(0, node.op)
        value = next((v for v in node.inputs if not v.is_static), value)
    return None, []


def _scores(draft: Draft, value: Value) -> tuple[Node, list[Value], list[str]] | None:
    """Return (first product, tensors added to the scores, operators) before the softmax."""
    biases: list[Value] = []
    operators: list[str] = []
    for _ in range(_LONGEST):
        if draft.sole_user(value) is None:
            return None
        product = producer_of(value, "batch_matmul")
        if product is not None:
            return product, biases, operators
        node = producer_of(value, *_ON_SCORES)
        if node is None:
            return None
        main = _main_operand(draft, node)
        if main is None:
            return None
        biases.extend(v for v in node.inputs if v is not main)
        if node.op not in ("reshape", "broadcast", "cast"):
            operators.insert(0, node.op)
        value = main
    return None


def _main_operand(draft: Draft, node: Node) -> Value | None:
    """Return the argument that holds the scores: of full size, from a product a few nodes back."""
    candidates = [v for v in node.inputs if not v.is_static and v.size == node.out.size]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return next((v for v in candidates if _leads_to_product(draft, v)), None)


def _leads_to_product(draft: Draft, value: Value) -> bool:
    for _ in range(_LONGEST):
        node = producer_of(value, "batch_matmul", *_ON_SCORES)
        if node is None or draft.sole_user(value) is None:
            return False
        if node.op == "batch_matmul":
            return True
        data = [v for v in node.inputs if not v.is_static]
        if not data:
            return False
        value = data[0]
    return False


def _skip_scale(draft: Draft, value: Value) -> tuple[Value, list[str]]:
    """Skip a scale by a number, also behind views, which then apply to the unscaled value."""
    views: list[Node] = []
    inner = value
    while (view := producer_of(inner, *_VIEWS)) and draft.sole_user(inner):
        views.append(view)
        inner = view.inputs[0]
    scale = producer_of(inner, "multiply", "divide")
    if scale is None or draft.sole_user(inner) is None or len(scale.inputs) != 2:
        return value, []
    number = next((v for v in scale.inputs if v.scalar is not None), None)
    source = next((v for v in scale.inputs if not v.is_static), None)
    if number is None or source is None or source.shape != inner.shape:
        return value, []
    if not views:
        return source, [scale.op]
    draft.set_inputs(views[-1], [source])
    return value, [scale.op]


def _skip_transpose(draft: Draft, key: Value) -> Value:
    """Return the key as (..., length, width), without a transpose made for the product."""
    node = producer_of(key, "transpose")
    if node is None:
        return key
    rank = len(key.shape)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    return node.inputs[0] if node.attributes["permutation"] == swap else key
