"""Matrix products: dense layers, batched products, and the kernel that all products are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from dippm.features.kernel import Kernel
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.sizes import elements, number, weight_elements
from dippm.graph.model_graph import OpNode


def product(
    expansion: Expansion,
    i: int,
    node: OpNode,
    kind: str,
    shape: tuple[float, float, float],
    copies: float,
) -> Kernel:
    """Return a matrix product that does all MACs of a node.

    Args:
        expansion: the run.
        i: position of the node.
        node: the operator.
        kind: kernel class.
        shape: m, n, k.
        copies: independent products of this shape.
    """
    m, n, k = shape
    width = expansion.product_width
    return Kernel(
        node=i,
        kind=kind,
        unit=expansion.unit(kind),
        flops=2.0 * node.macs,
        read_bytes=float(width * sum(prod(s) for s in node.in_shapes)),
        write_bytes=float(width * elements(node)),
        weight_bytes=float(width * weight_elements(node)),
        m=m,
        n=n,
        k=k,
        copies=copies,
        in_bytes=width,
        out_bytes=width,
        strided=expansion.reads_strided(i),
    )


def dense(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the kernel of a dense layer: rows × output features, summed over input features."""
    n = number(node, "out_features", node.out_shapes[0][-1])
    k = number(node, "in_features")
    yield product(expansion, i, node, "gemm", (elements(node) / max(n, 1.0), n, k), 1.0)


def batched_product(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the kernels of a batched product of two activations, copies of its operands first."""
    out = node.out_shapes[0]
    m, n = (float(out[-2]), float(out[-1])) if len(out) > 1 else (1.0, float(out[-1]))
    k = node.macs / max(1, elements(node))
    yield from contiguous_operands(expansion, i, node)
    copies = elements(node) / max(m * n, 1.0)
    yield product(expansion, i, node, "batched_gemm", (m, n, k), copies)


def contiguous_operands(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield copies of permuted operands: a batched product wants its batch axes as one."""
    copies = node.absorbed.count("transpose")
    if copies and node.in_shapes:
        operand = sum(prod(s) for s in node.in_shapes) / len(node.in_shapes)
        copy = Kernel.stream(i, "copy", operand, expansion.product_width)
        yield from [replace(copy, strided=True)] * copies
