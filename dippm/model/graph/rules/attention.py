"""R7, second half: product, scale, mask, softmax, product → `attention`."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.operators import FUSED_RANK
from dippm.model.graph.rules.layout import restore_order
from dippm.model.graph.rules.products import is_dense
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
_PRODUCTS = ("batch_matmul", "matmul")
_LONGEST = 12
_PACKED_TO_FRONT = (3, 1, 2, 0, 4)


def recognise_attention(draft: Draft) -> None:
    """Replace the operators of each softmax attention by one node."""
    for node in list(draft.nodes):
        if node.alive and node.op == "batch_matmul":
            _recognise(draft, node)
    prune(draft)


def join_attention(draft: Draft, *, scales_both: bool = False) -> None:
    """Replace the operators that spell an attention by one call of it.

    Args:
        draft: calls of a file.
        scales_both: whether it must scale queries and keys alike.
    """
    for node in list(draft.nodes):
        if node.alive and node.op in _PRODUCTS:
            _recognise(draft, node, is_call=True, scales_both=scales_both)
    restore_order(draft)
    prune(draft)


def join_exported_attention(draft: Draft) -> None:
    """Replace the operators that PyTorch's exporters write for one call of fused attention.

    They scale queries and keys alike, by the root of the scale, which models that spell attention
    out do not: those scale one of them, or the scores.
    """
    join_attention(draft, scales_both=True)


def copy_packed_projections(draft: Draft) -> None:
    """Insert the copy of `nn.MultiheadAttention`'s packed projections, which exporters leave out.

    The module moves the axis of queries, keys and values to the front, and makes that contiguous;
    without it each of them would be copied by the view that splits its heads.
    """
    for node in draft.live():
        if node.op != "transpose" or node.attributes["permutation"] != _PACKED_TO_FRONT:
            continue
        squeeze, (parts, *outer, one, width) = draft.sole_user(node.out), node.out.shape
        if one != 1 or squeeze is None or squeeze.out.shape != (parts, *outer, width):
            continue
        readers = [reader for reader in squeeze.out.uses if reader.op == "slice"]
        if parts != len(readers) or parts != len(squeeze.out.uses):
            continue
        draft.path, draft.origin = squeeze.path, squeeze.origin
        packed = squeeze.out
        copy = draft.emit("identity", [packed], shape=packed.shape, copies="contiguous").out
        for reader in readers:
            draft.set_inputs(reader, [copy])
    restore_order(draft)


def _recognise(
    draft: Draft, last: Node, *, is_call: bool = False, scales_both: bool = False
) -> None:
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
    if is_call and (len(product.out.shape) != FUSED_RANK or is_dense(product)):
        return  # PyTorch runs other ranks in steps
    if scales_both and not (_scale_of(draft, query)[0] and _scale_of(draft, key)[0]):
        return
    query, scaled_query = _skip_scale(draft, query)
    key, scaled_key = _skip_scale(draft, key)
    work = [*scaled_query, *scaled_key, "batch_matmul", *on_scores, "softmax", *after]
    shape = product.out.shape
    last.attributes = {
        "heads": _heads(shape, draft.batch),
        "query_length": shape[-2],
        "key_length": shape[-1],
        "head_dim": product.inputs[0].shape[-1],
        "value_dim": last.out.size * shape[-1] // product.out.size,
    }
    last.op, last.absorbed = "attention", [*work, "batch_matmul"]
    keys = _skip_transpose(draft, key)
    if is_call:
        keys = _transposed(draft, key, last) if keys is key else keys
        biases = [v for v in biases if v.scalar is None]
    draft.set_inputs(last, [query, keys, value, *biases])


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
        if (guarded := _guarded(value)) is not None:
            return guarded, ["where", *operators]
        if softmax is not None:
            return softmax, operators
        node = producer_of(value, "reshape", "cast", "broadcast", "multiply", "divide", "where")
        if node is None:
            return None, []
        if node.op not in ("reshape", "broadcast"):
            operators.insert(0, node.op)
        value = next((v for v in node.inputs if not v.is_static), value)
    return None, []


def _guarded(value: Value) -> Node | None:
    """Return the softmax of a value that is 0 where the softmax is no number, else None.

    PyTorch's exporters write that for rows that a mask leaves nothing of.
    """
    choice = producer_of(value, "where")
    if choice is None or len(choice.inputs) != 3:
        return None
    check, weights = producer_of(choice.inputs[0], "is_nan"), choice.inputs[2]
    if check is None or check.inputs[0] is not weights or len(weights.uses) != 2:
        return None
    return producer_of(weights, "softmax")


def _scores(draft: Draft, value: Value) -> tuple[Node, list[Value], list[str]] | None:
    """Return (first product, tensors added to the scores, operators) before the softmax."""
    biases: list[Value] = []
    operators: list[str] = []
    for _ in range(_LONGEST):
        if draft.sole_user(value) is None:
            return None
        product = producer_of(value, *_PRODUCTS)
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
        node = producer_of(value, *_PRODUCTS, *_ON_SCORES)
        if node is None or draft.sole_user(value) is None:
            return False
        if node.op in _PRODUCTS:
            return True
        data = [v for v in node.inputs if not v.is_static]
        if not data:
            return False
        value = data[0]
    return False


def _skip_scale(draft: Draft, value: Value) -> tuple[Value, list[str]]:
    """Skip a scale by a number, also behind views, which then apply to the unscaled value."""
    scale, views = _scale_of(draft, value)
    if scale is None:
        return value, []
    source = next(v for v in scale.inputs if not v.is_static)
    if not views:
        return source, [scale.op]
    draft.set_inputs(views[-1], [source])
    return value, [scale.op]


def _scale_of(draft: Draft, value: Value) -> tuple[Node | None, list[Node]]:
    """Return the node that scales a value by a number, and the views after it, last one first."""
    views: list[Node] = []
    while (view := producer_of(value, *_VIEWS)) and draft.sole_user(value):
        views.append(view)
        value = view.inputs[0]
    scale = producer_of(value, "multiply", "divide")
    if scale is None or draft.sole_user(value) is None or len(scale.inputs) != 2:
        return None, views
    source = next((v for v in scale.inputs if not v.is_static), None)
    numbers = [v for v in scale.inputs if v.scalar is not None]
    if not numbers or source is None or source.shape != value.shape:
        return None, views
    return scale, views


def _transposed(draft: Draft, value: Value, reader: Node) -> Value:
    """Return a view of a value with its last two axes swapped, made at the end for now."""
    *outer, rows, columns = range(len(value.shape))
    order = (*outer, columns, rows)
    draft.path, draft.origin = reader.path, reader.origin
    shape = tuple(value.shape[axis] for axis in order)
    return draft.emit("transpose", [value], shape=shape, permutation=order).out


def _skip_transpose(draft: Draft, key: Value) -> Value:
    """Return the key as (..., length, width), without a transpose made for the product.

    PyTorch's newer exporter folds the heads into the batch for the transpose.
    """
    unfolded = producer_of(key, "reshape")
    node = producer_of(unfolded.inputs[0] if unfolded else key, "transpose")
    if node is None:
        return key
    rank = len(node.out.shape)
    if node.attributes["permutation"] != (*range(rank - 2), rank - 1, rank - 2):
        return key
    if unfolded is None:
        return node.inputs[0]
    folded = producer_of(node.inputs[0], "reshape")
    *outer, width, length = key.shape
    if folded is None or folded.inputs[0].shape != (*outer, length, width):
        return key
    return folded.inputs[0]
