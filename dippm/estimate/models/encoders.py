"""Graph encoders: node rows and data flow in, one embedding per graph out.

To add one: a subclass of `BlockEncoder` that makes its layer, decorated with `@encoder("name")`.
The layers themselves are torch_geometric's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_add_pool
from torch_geometric.nn import global_mean_pool as mean_pool

from dippm.errors import UnknownNameError
from dippm.estimate.features import GraphTensors


class GraphEncoder(nn.Module):
    """One embedding z per graph.

    Attributes:
        width: size of z; 0 for an encoder that does not look at the graph.
    """

    width: int

    @abstractmethod
    def forward(self, x: torch.Tensor, graphs: GraphTensors) -> torch.Tensor:
        """Return z, (G, width), from scaled node features x, (N, 32)."""


ENCODERS: dict[str, type[GraphEncoder]] = {}
Kind = TypeVar("Kind", bound=type[GraphEncoder])


def encoder(name: str) -> Callable[[Kind], Kind]:
    """Register an encoder class under the name that configurations use."""

    def register(kind: Kind) -> Kind:
        ENCODERS[name] = kind
        return kind

    return register


def find_encoder(name: str) -> type[GraphEncoder]:
    """Return the encoder class.

    Raises:
        UnknownNameError: if the name is unknown.
    """
    if name not in ENCODERS:
        raise UnknownNameError.of("graph encoder", name, ENCODERS)
    return ENCODERS[name]


class BlockEncoder(GraphEncoder):
    """Three blocks of graph layers, each layer followed by ReLU and dropout; then a readout.

    Args:
        in_features: width of a node row.
        hidden: width of every layer and of z.
        layers_per_block: D3.5 does not say; its released code has 2.
        dropout: probability.
        l2_normalise: divide each node's embedding by its norm after each layer, for those layer
            types that define it.
        readout: "sum" or "mean" over the nodes of a graph.
    """

    BLOCKS = 3

    def __init__(
        self,
        in_features: int,
        *,
        hidden: int,
        layers_per_block: int,
        dropout: float,
        l2_normalise: bool,
        readout: str,
    ) -> None:
        super().__init__()
        self.width = hidden
        self.readout = readout
        self.l2_normalise = l2_normalise
        widths = [in_features] + [hidden] * (self.BLOCKS * layers_per_block)
        self.layers = nn.ModuleList(self._layer(a, b) for a, b in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def _layer(self, in_features: int, out_features: int) -> nn.Module:
        """Return one graph layer."""

    def forward(self, x: torch.Tensor, graphs: GraphTensors) -> torch.Tensor:
        """Return z, (G, hidden)."""
        for layer in self.layers:
            x = self.dropout(layer(x, graphs.edge_index).relu())
        pool = global_add_pool if self.readout == "sum" else mean_pool
        z: torch.Tensor = pool(x.float(), graphs.batch, graphs.num_graphs)
        return z


@encoder("sage")
class SageEncoder(BlockEncoder):
    """GraphSAGE (Hamilton et al. 2017) with mean aggregation."""

    def _layer(self, in_features: int, out_features: int) -> nn.Module:
        layer: nn.Module = SAGEConv(in_features, out_features, normalize=self.l2_normalise)
        return layer


@encoder("gcn")
class GcnEncoder(BlockEncoder):
    """Graph convolution (Kipf and Welling 2017). Its degree normalisation is not an L2 norm."""

    def _layer(self, in_features: int, out_features: int) -> nn.Module:
        layer: nn.Module = GCNConv(in_features, out_features)
        return layer


@encoder("gat")
class GatEncoder(BlockEncoder):
    """Graph attention (Veličković et al. 2018), one head."""

    def _layer(self, in_features: int, out_features: int) -> nn.Module:
        layer: nn.Module = GATConv(in_features, out_features)
        return layer


@encoder("gin")
class GinEncoder(BlockEncoder):
    """Graph isomorphism network (Xu et al. 2019), its MLP two layers deep."""

    def _layer(self, in_features: int, out_features: int) -> nn.Module:
        mlp = nn.Sequential(
            nn.Linear(in_features, out_features), nn.ReLU(), nn.Linear(out_features, out_features)
        )
        layer: nn.Module = GINConv(mlp, train_eps=True)
        return layer


@encoder("mlp")
class NoEncoder(GraphEncoder):
    """No graph at all: the static features alone, D3.5's plain MLP."""

    def __init__(self, in_features: int, **_: object) -> None:
        super().__init__()
        self.width = 0

    def forward(self, x: torch.Tensor, graphs: GraphTensors) -> torch.Tensor:
        """Return z, (G, 0)."""
        return x.new_zeros(graphs.num_graphs, 0)
