"""Casts that autocast launches: to half before a product, to float32 for what needs its range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from dippm.features.kernel import Kernel
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.sizes import elements, weight_elements
from dippm.graph.model_graph import OpNode


def casts_of_operands(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the casts before a matrix product: activations and weights."""
    if not expansion.autocast:
        return
    sources = [(p, elements(expansion.graph.nodes[p])) for p in expansion.producers[i]]
    wide = [count for p, count in sources if expansion.width[p] == 4]
    if not sources:
        wide = [prod(node.in_shapes[0])] if node.in_shapes else []
    for count in wide:
        yield to_half(i, count)
    weights = weight_elements(node)
    if weights:
        yield replace(to_half(i, weights), read_bytes=0.0, weight_bytes=4.0 * weights)


def in_float32(expansion: Expansion, kernel: Kernel, count: float) -> Iterator[Kernel]:
    """Yield a kernel with the casts of `count` elements before and after, under autocast."""
    if expansion.autocast:
        yield to_float32(kernel.node, count)
    yield kernel
    if expansion.autocast:
        yield to_half(kernel.node, count)


def to_half(i: int, count: float) -> Kernel:
    """Return a cast of `count` elements from float32."""
    return Kernel.stream(i, "cast", count, 4, 2)


def to_float32(i: int, count: float) -> Kernel:
    """Return a cast of `count` elements from half precision."""
    return Kernel.stream(i, "cast", count, 2, 4)
