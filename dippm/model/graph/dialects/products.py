"""Readers of matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.einsum import contract
from dippm.model.graph.draft import Value


def _transpose_last(call: RawCall, value: Value) -> Value:
    rank = len(value.shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    shape = tuple(value.shape[a] for a in axes)
    return call.view("transpose", value, shape, permutation=axes)


def _matmul(call: RawCall) -> bool:
    left, right = call.inputs[0], call.inputs[1]
    if call.attributes.get("adj_x") or call.attributes.get("transpose_a"):
        left = _transpose_last(call, left)
    if call.attributes.get("adj_y") or call.attributes.get("transpose_b"):
        right = _transpose_last(call, right)
    if len(call.inputs) > 2:
        product = call.step("matmul", [left, right], call.out_shape)
        return call.first("add", [product, call.inputs[2]])
    return call.first("matmul", [left, right])


def _linear(call: RawCall) -> bool:
    """`linear` and ONNX's Gemm with transB keep the weight as (out, in)."""
    weight = _transpose_last(call, call.inputs[1])
    if len(call.inputs) == 2:
        return call.first("matmul", [call.inputs[0], weight])
    product = call.step("matmul", [call.inputs[0], weight], call.out_shape)
    return call.first("add", [product, call.inputs[2]])


def _gemm(call: RawCall) -> bool:
    call.attributes = {
        "transpose_a": call.attributes.get("transA", 0),
        "transpose_b": call.attributes.get("transB", 0),
    }
    return _matmul(call)


def _addmm(call: RawCall) -> bool:
    bias, left, right = call.inputs[:3]
    product = call.step("matmul", [left, right], call.out_shape)
    return call.first("add", [product, bias])


_CAUSAL = ("is_causal", "causal_mask", "use_causal_mask", "unidirectional")
"""Names of the attribute that says that a query sees the keys up to its own alone."""


def _sdpa(call: RawCall) -> bool:
    query, key, value = call.inputs[:3]
    batch_first_heads = call.name.startswith("nn.")  # Relax: batch, length, heads, width
    heads, length = (2, 1) if batch_first_heads and len(query.shape) == 4 else (1, 2)
    rank = len(query.shape)
    node = call.draft.emit(
        "attention",
        [query, key, value, *call.inputs[3:]],
        outputs=call.outputs[:1],
        heads=query.shape[heads] if rank == 4 else 1,
        query_length=query.shape[length] if rank == 4 else query.shape[-2],
        key_length=key.shape[length] if rank == 4 else key.shape[-2],
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
    )
    node.absorbed = ["sdpa"]
    if any(map(call.attributes.get, _CAUSAL)):
        node.attributes = {**node.attributes, "causal": 1}
    return True


def _vector(call: RawCall) -> bool:
    """A matrix and a vector."""
    return contract(call, ["ij", "j"], "i")


def _dot(call: RawCall) -> bool:
    return contract(call, ["i", "i"], "")


def _outer(call: RawCall) -> bool:
    return contract(call, ["i", "j"], "ij")


def _bilinear(call: RawCall) -> bool:
    """`x₁ᵀ W x₂`: a layer on the first argument, then one product for each sample."""
    left, right, weight = call.inputs[:3]
    rows = prod(left.shape[:-1])
    outs, width, _ = weight.shape
    wide = outs * right.shape[-1]
    flat = call.view("reshape", left, (rows, width))
    weight = call.view("reshape", weight, (width, wide))
    mixed = call.step("matmul", [flat, weight], (rows, wide))
    mixed = call.view("reshape", mixed, (rows, outs, right.shape[-1]))
    column = call.view("reshape", right, (rows, right.shape[-1], 1))
    product = call.step("matmul", [mixed, column], (rows, outs, 1))
    return call.first("reshape", [product])


READERS: dict[str, Callable[[RawCall], bool]] = {
    "batch_matmul": _matmul,
    "linear": _linear,
    "gemm": _gemm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "attention": _sdpa,
    "mv": _vector,
    "dot": _dot,
    "vdot": _dot,
    "outer": _outer,
    "ger": _outer,
    "bilinear": _bilinear,
}
