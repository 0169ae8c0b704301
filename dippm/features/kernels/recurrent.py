"""Recurrent layers: one product per step and layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dippm.features.kernel import Kernel
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.products import product
from dippm.features.kernels.sizes import elements, number
from dippm.graph.model_graph import OpNode


def recurrent(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield one record that stands for the products of all steps and layers."""
    hidden = number(node, "hidden_size")
    launches = int(number(node, "steps")) * int(number(node, "layers"))
    shape = (elements(node) / hidden, hidden, hidden)
    kernel = product(expansion, i, node, "recurrent", shape, 1.0)
    yield replace(kernel, launches=max(1, launches))
