"""Operators that a canonical rule folded into another one: eager mode launches them still."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.features.kernel import Kernel
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.sizes import elements
from dippm.graph.model_graph import STATIC, OpNode
from dippm.graph.operators import operator


def folded_operators(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield a pass for each operator that was folded in: after a product, else in its place."""
    if node.op == "attention":  # its rule launches what it absorbed
        return
    for folded in node.absorbed:
        kind = class_of_folded(folded)
        if kind is not None and folded != "transpose":
            yield Kernel.stream(i, kind, elements(node), expansion.width[i])


def class_of_folded(op: str) -> str | None:
    """Return the kernel class of a folded operator, None if it launches nothing."""
    row = operator(op)
    if row.category == "view" or op.startswith(STATIC):
        return None
    kernel = KERNEL_CLASSES.get(row.kernel)
    return kernel.name if kernel and kernel.streams else None
