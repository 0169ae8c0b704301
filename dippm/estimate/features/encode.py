"""`encode`: a `ModelGraph` as tensors, and `collate`: several of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dippm.estimate.features.feature_spec import FEATURE_VERSION
from dippm.estimate.features.node_features import edge_index, node_features
from dippm.estimate.features.static_features import static_features
from dippm.model.graph.model_graph import ModelGraph

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """One model, or several side by side.

    Attributes:
        x: (N, 32) float32 node features.
        edge_index: (2, E) int64, producers and consumers.
        static: (G, 5) float32, equation 1, unscaled.
        batch: (N,) int64, the graph of each node; G is 1 for a single model.
        version: feature layout.
    """

    x: torch.Tensor
    edge_index: torch.Tensor
    static: torch.Tensor
    batch: torch.Tensor
    version: str = FEATURE_VERSION

    @property
    def num_graphs(self) -> int:
        """G."""
        return self.static.shape[0]

    def to_data(self) -> Data:
        """Return a torch_geometric `Data` of the same tensors, for its loaders and explainers."""
        from torch_geometric.data import Data

        fields: dict[str, Any] = {"static": self.static}
        return Data(x=self.x, edge_index=self.edge_index, **fields)


def encode(graph: ModelGraph) -> GraphTensors:
    """Return a model's tensors."""
    import torch

    x = node_features(graph)
    return GraphTensors(
        x=x,
        edge_index=edge_index(graph),
        static=static_features(graph).float()[None],
        batch=torch.zeros(x.shape[0], dtype=torch.int64),
    )


def collate(graphs: Sequence[GraphTensors]) -> GraphTensors:
    """Return several graphs as one disconnected graph.

    Raises:
        ValueError: if there are no graphs, or if their layouts differ.
    """
    import torch

    versions = {graph.version for graph in graphs}
    if len(versions) != 1:
        raise ValueError(f"collate needs graphs of one feature version, got {sorted(versions)}")
    edges, owners, node, owner = [], [], 0, 0
    for graph in graphs:
        edges.append(graph.edge_index + node)
        owners.append(graph.batch + owner)
        node += graph.x.shape[0]
        owner += graph.num_graphs
    return GraphTensors(
        x=torch.cat([graph.x for graph in graphs]),
        edge_index=torch.cat(edges, dim=1),
        static=torch.cat([graph.static for graph in graphs]),
        batch=torch.cat(owners),
        version=versions.pop(),
    )
