"""Features of a whole model: the five of D3.5's equation 1, and a wider named vector."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from dippm.estimate.features.feature_spec import (
    CLASS_OF_OPERATOR,
    CONVOLUTIONS,
    MAC_OPERATORS,
    OPERATOR_CLASSES,
)
from dippm.model.graph.liveness import peak_activation_bytes
from dippm.model.graph.model_graph import ModelGraph

if TYPE_CHECKING:
    import torch

_WIDE_TOTALS = (
    "batch",
    "macs",
    "flops",
    "bytes_read",
    "bytes_written",
    "param_bytes",
    "peak_activation_bytes",
    "input_elements",
    "output_elements",
    "operators",
    "edges",
    "depth",
    "max_width",
    "relus",
    "unknown_operators",
)
WIDE_STATIC_COLUMNS = (
    *_WIDE_TOTALS,
    *(f"count_{name}" for name in OPERATOR_CLASSES),
    *(f"macs_{name}" for name in OPERATOR_CLASSES[1:7]),
)


def static_features(graph: ModelGraph) -> torch.Tensor:
    """Return equation 1's five, (5,) float64: MACs, batch, convolutions, dense, ReLU.

    MACs are those of convolution, transposed convolution, dense and batched products only (a
    fused attention is two of the latter). A model without one kind has 0 there.
    """
    import torch

    counts = Counter(node.op for node in graph.nodes)
    macs = sum(node.macs for node in graph.nodes if node.op in MAC_OPERATORS)
    convolutions = sum(counts[op] for op in CONVOLUTIONS)
    return torch.tensor(
        [macs, graph.batch, convolutions, counts["dense"], counts["relu"]], dtype=torch.float64
    )


def wide_static_features(graph: ModelGraph) -> dict[str, float]:
    """Return totals of the model by name, in the order of `WIDE_STATIC_COLUMNS`.

    Bytes are bytes, everything else is a count; nothing is scaled.
    """
    levels = _levels(graph)
    counts = Counter(CLASS_OF_OPERATOR.get(node.op, 0) for node in graph.nodes)
    totals = (
        graph.batch,
        sum(node.macs for node in graph.nodes),
        sum(node.flops for node in graph.nodes),
        sum(node.bytes_read for node in graph.nodes),
        sum(node.bytes_written for node in graph.nodes),
        graph.param_bytes,
        peak_activation_bytes(graph),
        sum(math.prod(tensor.shape) for tensor in graph.inputs),
        sum(math.prod(tensor.shape) for tensor in graph.outputs),
        len(graph.nodes),
        len(graph.edges),
        max(levels, default=0),
        max(Counter(levels).values(), default=0),
        sum(node.op == "relu" for node in graph.nodes),
        sum(graph.unknown_ops.values()),
    )
    macs = Counter[int]()
    for node in graph.nodes:
        macs[CLASS_OF_OPERATOR.get(node.op, 0)] += node.macs
    values = (
        *totals,
        *(counts[i] for i in range(len(OPERATOR_CLASSES))),
        *(macs[i] for i in range(1, 7)),
    )
    return dict(zip(WIDE_STATIC_COLUMNS, map(float, values), strict=True))


def _levels(graph: ModelGraph) -> list[int]:
    """Return per node the longest path to it, in operators (post-order makes one pass enough)."""
    levels = [1] * len(graph.nodes)
    for producer, consumer in graph.edges:
        levels[consumer] = max(levels[consumer], levels[producer] + 1)
    return levels
