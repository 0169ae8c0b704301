"""R3 and R11: products get their canonical names; those of 8-bit integers read the integers.

A product with a parameter is `dense`, one of two activations is `batch_matmul`. A product between a
dequantise and a quantise is a product of 8-bit integers: files store the weight and the activation
in 8 bits but write the product for floats; runtimes for such files execute an integer product.
"""

from __future__ import annotations

from math import prod

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.operators import operator
from dippm.model.graph.rules.prune import prune


def name_products(draft: Draft) -> None:
    """Give every `matmul` its canonical name and sizes."""
    for node in draft.nodes:
        if node.op == "matmul":
            _name_product(node)


def _name_product(node: Node) -> None:
    left, right = node.inputs
    k = left.shape[-1]
    if right.is_static and prod(right.shape[:-2]) == 1 and not left.is_static:
        node.op = "dense"
        node.attributes = {"in_features": k, "out_features": right.shape[-1]}
    else:
        node.op = "batch_matmul"
        m = left.shape[-2] if len(left.shape) > 1 else 1
        n = right.shape[-1] if len(right.shape) > 1 else 1
        node.attributes = {"m": m, "n": n, "k": k}


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
