"""R3 and R11: products get their canonical names; those of 8-bit integers read the integers.

A product with a parameter is `dense`, one of two activations is `batch_matmul`. A product between a
dequantise and a quantise is a product of 8-bit integers: files store the weight and the activation
in 8 bits but write the product for floats; runtimes for such files execute an integer product.
"""

from __future__ import annotations

from math import prod

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.operators import operator
from dippm.model.graph.rules.layout import restore_order
from dippm.model.graph.rules.prune import prune


def name_products(draft: Draft) -> None:
    """Give every `matmul` its canonical name and sizes."""
    for node in draft.nodes:
        if node.op == "matmul":
            _name_product(node)


def _name_product(node: Node) -> None:
    left, right = node.inputs
    k = left.shape[-1]
    if is_dense(node):
        node.op = "dense"
        node.attributes = {"in_features": k, "out_features": right.shape[-1]}
    else:
        node.op = "batch_matmul"
        m = left.shape[-2] if len(left.shape) > 1 else 1
        n = right.shape[-1] if len(right.shape) > 1 else 1
        node.attributes = {"m": m, "n": n, "k": k}


def join_biases(draft: Draft) -> None:
    """Put biases before the reshapes of products, where PyTorch's linear layers add them.

    TensorFlow multiplies matrices, and Keras's layers give the result its shape before the bias.
    """
    for node in draft.live():
        if node.op == "add":
            _move_bias(draft, node)
    restore_order(draft)
    prune(draft)


def _move_bias(draft: Draft, node: Node) -> None:
    data, static = node.data_inputs, [v for v in node.inputs if v.is_static]
    if len(data) != 1 or len(static) != 1 or node.out.shape != data[0].shape:
        return
    bias, view = static[0], producer_of(data[0], "reshape")
    product = producer_of(view.inputs[0], "matmul") if view else None
    if product is None or not is_dense(product) or draft.sole_user(data[0]) is None:
        return
    rank = len(bias.shape)
    if bias.size != product.out.shape[-1] or bias.shape != node.out.shape[-rank:]:
        return
    after = node.out
    node.outputs = [Value(product.out.shape, after.dtype)]
    node.out.producer = node
    draft.set_inputs(node, [product.out, bias.as_static((bias.size,))])
    product.path = node.path
    draft.path, draft.origin = node.path, node.origin
    draft.emit("reshape", [node.out], outputs=[after])


def is_dense(product: Node) -> bool:
    """Return whether a product is that of activations with one matrix of weights."""
    left, right = product.inputs
    return right.is_static and prod(right.shape[:-2]) == 1 and not left.is_static


BYTES = ("int8", "uint8")


def name_integer_products(draft: Draft) -> None:
    """Make products read the integers, and write integers if only a quantise follows."""
    for node in draft.nodes:
        if operator(node.op).autocast == "lower" and operator(node.op).category == "compute":
            _read_integers(draft, node)
    prune(draft)


def _read_integers(draft: Draft, node: Node) -> None:
    data = node.data_inputs
    sources = [_integers(value) for value in data]
    weights = [v for v in node.inputs if v.is_static]
    if not data or any(s is None for s in sources):
        return
    if any(not _is_stored_in_bytes(draft, weight) for weight in weights[:1]):
        return
    found = iter(sources)
    inputs = [v if v.is_static else next(found) for v in node.inputs]
    draft.set_inputs(node, [v for v in inputs if v is not None])
    after = draft.sole_user(node.out)
    if after is not None and after.op == "quantize":
        node.out.dtype = after.out.dtype
        draft.bypass(after, node.out)


def _integers(value: Value) -> Value | None:
    """Return the 8-bit tensor that a value was dequantised from, else None."""
    node = producer_of(value, "dequantize")
    source = node.inputs[0] if node is not None else None
    return source if source is not None and source.dtype in BYTES else None


def _is_stored_in_bytes(draft: Draft, weight: Value) -> bool:
    wide = [draft.parameters[root] for root in weight.roots]
    return any(dtype in BYTES and len(shape) >= 2 for shape, dtype in wide)
