"""R3: a product with a parameter is `dense`, one of two activations is `batch_matmul`."""

from __future__ import annotations

from math import prod

from dippm.model.graph.draft import Draft, Node


def name_products(draft: Draft) -> None:
    """Give every `matmul` its canonical name and sizes."""
    for node in draft.nodes:
        if node.op == "matmul":
            _name(node)


def _name(node: Node) -> None:
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
