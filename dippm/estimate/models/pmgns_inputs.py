"""`network_inputs`: what a PMGNS network sees of a graph, as D3.5 says or as its code does.

The released code of D3.5 keeps an operator only if it reads a weight or a model input, joins the
kept operators to a chain, and puts the weight's shape where the report says output shape. These
are switches of `PmgnsConfig`, so that the difference can be measured.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dippm.estimate.features import GraphTensors, encode
from dippm.estimate.features.feature_spec import FIRST_SHAPE, SHAPE_COLUMNS
from dippm.estimate.models.pmgns_network import PmgnsConfig
from dippm.model.graph.model_graph import ModelGraph, OpNode


def network_inputs(
    graph: ModelGraph,
    config: PmgnsConfig,
    *,
    precision: str = "fp32",
    channels_last: bool = False,
) -> GraphTensors:
    """Return the tensors of a graph under the switches `nodes`, `edges` and `shape`.

    Precision and layout enter as static inputs if the network tells precisions apart.
    """
    tensors = encode(graph)
    if config.precisions:
        told = [float(precision == known) for known in config.precisions] + [float(channels_last)]
        static = torch.cat([tensors.static, torch.tensor([told])], dim=1)
        tensors = replace(tensors, static=static)
    if config.shape == "weight":
        tensors = replace(tensors, x=_with_weight_shapes(graph, tensors.x))
    if config.nodes == "var_only":
        tensors = _only(tensors, _reads_variable(graph))
    if config.edges == "chain":
        order = torch.arange(tensors.x.shape[0])
        tensors = replace(tensors, edge_index=torch.stack([order[:-1], order[1:]]))
    return tensors


def _reads_variable(graph: ModelGraph) -> list[bool]:
    fed = {consumer for _, consumer in graph.edges}
    return [node.param_bytes > 0 or i not in fed for i, node in enumerate(graph.nodes)]


def _only(tensors: GraphTensors, kept: list[bool]) -> GraphTensors:
    """Drop operators; data flow through a dropped one joins its neighbours."""
    position, count = {}, 0
    for node, keep in enumerate(kept):
        if keep:
            position[node] = count
            count += 1
    origins: list[set[int]] = [set() for _ in kept]
    edges: set[tuple[int, int]] = set()
    for producer, consumer in sorted(map(tuple, tensors.edge_index.T.tolist()), key=lambda e: e[1]):
        sources = {position[producer]} if kept[producer] else origins[producer]
        if kept[consumer]:
            edges |= {(source, position[consumer]) for source in sources}
        else:
            origins[consumer] |= sources
    index = torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2).T.contiguous()
    mask = torch.tensor(kept, dtype=torch.bool)
    return replace(tensors, x=tensors.x[mask], edge_index=index, batch=tensors.batch[mask])


def _with_weight_shapes(graph: ModelGraph, x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    sizes = torch.tensor([_weight_shape(node) for node in graph.nodes], dtype=torch.float64)
    x[:, FIRST_SHAPE : FIRST_SHAPE + 4] = sizes.reshape(-1, 4).log1p().float()
    x[:, FIRST_SHAPE + 4 : FIRST_SHAPE + len(SHAPE_COLUMNS)] = 0.0
    return x


def _weight_shape(node: OpNode) -> tuple[int, int, int, int]:
    """Return the weight's shape, cut or padded with zeros to four sizes."""

    def number(name: str, default: int = 0) -> int:
        value = node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    if node.op == "dense":
        shape: tuple[int, ...] = (number("out_features"), number("in_features"))
    elif "out_channels" in node.attributes:
        kernel = node.attributes.get("kernel", ())
        inputs = number("in_channels") // max(number("groups", 1), 1)
        shape = (number("out_channels"), inputs, *(kernel if isinstance(kernel, tuple) else ()))
    else:
        shape = ()
    a, b, c, d = (*shape, 0, 0, 0, 0)[:4]
    return a, b, c, d
