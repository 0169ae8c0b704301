"""Products of 8-bit integers, whatever the precision of the rest."""

from __future__ import annotations

from dataclasses import replace

from dippm.features.kernel import Kernel
from dippm.features.kernels.expansion import Expansion
from dippm.graph.model_graph import OpNode


def is_integer(node: OpNode) -> bool:
    """Return whether a product is one of 8-bit integers."""
    return bool(node.in_dtypes) and all(dtype in ("int8", "uint8") for dtype in node.in_dtypes)


def in_integers(expansion: Expansion, i: int, node: OpNode, kernel: Kernel) -> Kernel:
    """Return a product as one of 8-bit integers."""
    share = kernel.flops / max(2.0 * node.macs, 1.0)
    width = expansion.product_width
    return replace(
        kernel,
        unit="int8",
        read_bytes=kernel.read_bytes / width,
        write_bytes=kernel.write_bytes / width * expansion.width[i],
        weight_bytes=float(node.param_bytes) * share,
        in_bytes=1,
        out_bytes=expansion.width[i],
    )
