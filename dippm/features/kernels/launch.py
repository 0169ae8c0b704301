"""`launched`: the kernels of a graph, and which rule expands which operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dippm.conditions import Mode, Precision
from dippm.features.data_flow import with_sources
from dippm.features.fusion import fuse
from dippm.features.kernel import Kernel
from dippm.features.kernels.attention import attention
from dippm.features.kernels.casts import casts_of_operands
from dippm.features.kernels.convolution import convolution
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.folded import folded_operators
from dippm.features.kernels.integers import in_integers, is_integer
from dippm.features.kernels.products import batched_product, dense
from dippm.features.kernels.recurrent import recurrent
from dippm.features.kernels.streaming import pass_over_memory, view
from dippm.graph.model_graph import STATIC, ModelGraph, OpNode
from dippm.graph.operators import operator
from dippm.progress import counted

KERNEL_VERSION = "6"

Rule = Callable[[Expansion, int, OpNode], Iterator[Kernel]]
PRODUCTS: Mapping[str, Rule] = {
    "convolution": convolution,
    "gemm": dense,
    "batched_gemm": batched_product,
    "attention": attention,
    "recurrent": recurrent,
}
"""Rules of matrix products, by the column `kernel` of the operator table."""


def launched(
    graph: ModelGraph,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    *,
    channels_last: bool = False,
) -> list[Kernel]:
    """Return the kernels of one inference in execution order.

    Args:
        graph: a graph at the batch in question.
        precision: see `Conditions`.
        mode: "eager", or "compiled", which fuses chains of element-wise kernels.
        channels_last: images are held so; a change to channels-last order is then only a view.
    """
    expansion = Expansion(graph, precision, channels_last)
    nodes = counted(graph.nodes, len(graph.nodes), "kernels of operator")
    expanded = [
        kernel for i, node in enumerate(nodes) for kernel in _rule_of(node)(expansion, i, node)
    ]
    kernels = with_sources(graph, expanded)
    return fuse(graph, kernels) if mode == "compiled" else kernels


def _rule_of(node: OpNode) -> Rule:
    row = operator(node.op)
    if row.kernel in PRODUCTS:
        return _product
    if node.op == "transpose" or row.category == "view":
        return view
    if any(not piece.startswith(STATIC) for piece in node.absorbed):
        return _what_was_folded
    return _nothing if row.kernel == "none" else pass_over_memory


def _product(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    kernels = PRODUCTS[operator(node.op).kernel](expansion, i, node)
    if is_integer(node):
        expansion.width[i] = expansion.promoted(i, node)
        yield from (in_integers(expansion, i, node, kernel) for kernel in kernels)
    else:
        yield from casts_of_operands(expansion, i, node)
        expansion.width[i] = expansion.product_width
        yield from kernels
    yield from folded_operators(expansion, i, node)


def _what_was_folded(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    expansion.width[i] = expansion.promoted(i, node)
    yield from folded_operators(expansion, i, node)


def _nothing(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    expansion.width[i] = expansion.promoted(i, node)
    yield from ()
