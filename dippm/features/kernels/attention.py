"""Attention: one fused kernel, or the kernels that an unfused one launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dippm.features.kernel import Kernel
from dippm.features.kernels.casts import in_float32
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.products import contiguous_operands, product
from dippm.features.kernels.sizes import number
from dippm.graph.model_graph import STATIC, OpNode
from dippm.graph.operators import operator

FUSED_RANK = 4
UNFUSED_ATTENTION = ("multiply", "multiply", "batch_matmul", "softmax", "batch_matmul")
"""What scaled_dot_product_attention launches for operands of more axes than its fused kernels."""


def attention(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield one fused kernel, or one for each operator that the exporter spelled out."""
    spelled = node.absorbed
    if "sdpa" in spelled and node.in_shapes and len(node.in_shapes[0]) > FUSED_RANK:
        spelled = UNFUSED_ATTENTION
    queries = number(node, "query_length", node.out_shapes[0][-2])
    keys = number(node, "key_length", queries)
    width = number(node, "head_dim", node.out_shapes[0][-1])
    heads = node.macs / max(1.0, 2.0 * queries * keys * width)
    fused = product(expansion, i, node, "attention", (queries, keys, width), heads)
    if not spelled or "sdpa" in spelled:
        yield fused
    else:
        yield from contiguous_operands(expansion, i, node)
        yield from _unfused(expansion, i, node, fused, spelled)


def _unfused(
    expansion: Expansion, i: int, node: OpNode, fused: Kernel, spelled: tuple[str, ...]
) -> Iterator[Kernel]:
    """Yield a kernel per operator: scores = queries · keys, their softmax, scores · values."""
    queries, keys, width, heads = fused.m, fused.n, fused.k, fused.copies
    scores = queries * keys * heads
    item = expansion.product_width
    first = True
    for op in spelled:
        if op == "batch_matmul":
            if first:
                shape = (queries, keys, width)
                read, written = (queries + keys) * width * heads, scores
            else:
                shape = (queries, width, keys)
                read, written = scores + keys * width * heads, queries * width * heads
            m, n, k = shape
            yield replace(
                fused,
                kind="batched_gemm",
                flops=fused.flops / 2,
                read_bytes=item * read,
                write_bytes=item * written,
                m=m,
                n=n,
                k=k,
            )
            first = False
        elif op == "softmax":
            yield from _softmax(expansion, i, scores, keys)
        elif op.startswith(STATIC):
            yield Kernel.stream(i, "gather", node.param_bytes / 4, 4)
        elif operator(op).category in ("elementwise", "activation"):
            yield Kernel.stream(
                i, "elementwise", queries * width * heads if first else scores, item
            )


def _softmax(expansion: Expansion, i: int, scores: float, keys: float) -> Iterator[Kernel]:
    width = 4 if expansion.autocast else expansion.product_width
    softmax = Kernel.stream(i, "softmax", scores, width)
    softmax = replace(softmax, m=scores / max(keys, 1.0), n=keys, flops=5.0 * scores)
    yield from in_float32(expansion, softmax, scores)
