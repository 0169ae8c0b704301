"""PMGNS, the network of D3.5 §4.4: three GraphSAGE blocks, static features, three FC blocks.

    z = readout(SAGE₃(SAGE₂(SAGE₁(X, A))))
    memory, latency, energy = FC₃(FC₂(FC₁(z ⊕ F_s)))

Where D3.5 and its released code differ, `PmgnsConfig` has a switch; `PmgnsConfig.variant` returns
either. Scales of inputs and targets are buffers, fitted on the training split and saved with the
weights. Targets have the units of `dippm.estimate.models.targets`. The second section contains the
graph encoders: GraphSAGE, and those with which D3.5 compares it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, Self, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_add_pool
from torch_geometric.nn import global_mean_pool as mean_pool

from dippm.errors import CheckpointError, UnknownNameError
from dippm.estimate.features import NODE_FEATURES, GraphTensors

Variant = Literal["paper", "code"]
STATIC_FEATURES = 5
"""Number of static features of D3.5's equation 1."""
CODE_STATIC_ORDER = (1, 0, 2, 3, 4)
"""Order of the static features in the released code: the batch before the MACs."""
RAW_SCALES = {"memory_mb": 1.0, "latency_ms": 1000.0, "energy_j": 10.0}
"""Factors of the targets in the released code."""


@dataclass(frozen=True, slots=True)
class PmgnsConfig:
    """Configuration of the network.

    Attributes:
        gnn: name of the encoder; "sage" is PMGNS, the others are D3.5's comparators.
        targets: names of the outputs of the head, in order.
        hidden: width of graph and FC layers (D3.5 table 2).
        layers_per_block: graph layers in a block; 1, since D3.5 gives no number; its code has 2.
        dropout: dropout probability (D3.5 table 2).
        edges: edges of the graph: "dataflow", or the "chain" of the released code.
        nodes: nodes of the graph: "all", or "var_only", those that read a weight or model input.
        shape: shape in a node's features: that of its "output", or the released code's "weight".
        static_order: order of the static features: "eq1", or "code" with the batch before MACs.
        l2_normalise: whether node embeddings have norm 1, in the layers that define it.
        readout: "mean" or "sum" over nodes. D3.5 does not say; its code has "sum", which on our
            graphs (up to 2,400 nodes) was far behind after three epochs: MAPE 0.85 against 0.17.
        target_space: "log", or the released code's "raw" scales behind a softplus.
        loss: "huber" (D3.5 table 2) or "mse".
        precisions: number formats that are static inputs (one-hot, with the layout of images);
            empty, as in D3.5, for a network of one precision and layout.
    """

    gnn: str = "sage"
    targets: tuple[str, ...] = ("memory_mb", "latency_ms", "energy_j")
    hidden: int = 512
    layers_per_block: int = 1
    dropout: float = 0.05
    edges: Literal["dataflow", "chain"] = "dataflow"
    nodes: Literal["all", "var_only"] = "all"
    shape: Literal["output", "weight"] = "output"
    static_order: Literal["eq1", "code"] = "eq1"
    l2_normalise: bool = True
    readout: Literal["sum", "mean"] = "mean"
    target_space: Literal["log", "raw"] = "log"
    loss: Literal["huber", "mse"] = "huber"
    precisions: tuple[str, ...] = ()

    @classmethod
    def variant(cls, name: Variant, **changes: Any) -> Self:
        """Return the network as the "paper" describes it, or as the released "code" builds it."""
        code = cls(
            layers_per_block=2,
            readout="sum",
            edges="chain",
            nodes="var_only",
            shape="weight",
            static_order="code",
            target_space="raw",
        )
        return replace(code if name == "code" else cls(), **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of `config.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read the dictionary that `to_dict` returned.

        Raises:
            CheckpointError: if the dictionary has a switch that this version does not know.
        """
        unknown = set(document) - {field.name for field in fields(cls)}
        if unknown:
            raise CheckpointError(
                f"the network configuration has unknown switches: {', '.join(sorted(unknown))}",
                "The checkpoint was made by another version of DIPPM; install that one.",
            )
        lists = {name: tuple(document.get(name, ())) for name in ("targets", "precisions")}
        return cls(**{**document, **lists})

    @property
    def static_width(self) -> int:
        """Number of static inputs: the five of equation 1, then those of the conditions."""
        return STATIC_FEATURES + (len(self.precisions) + 1 if self.precisions else 0)


class Pmgns(nn.Module):
    """The network: scaled inputs → encoder → FC blocks → targets.

    Args:
        config: configuration of the network.
    """

    node_mean: torch.Tensor
    node_std: torch.Tensor
    static_mean: torch.Tensor
    static_std: torch.Tensor
    target_mean: torch.Tensor
    target_std: torch.Tensor

    def __init__(self, config: PmgnsConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = find_encoder(config.gnn)(
            NODE_FEATURES,
            hidden=config.hidden,
            layers_per_block=config.layers_per_block,
            dropout=config.dropout,
            l2_normalise=config.l2_normalise,
            readout=config.readout,
        )
        self.head = _fully_connected(self.encoder.width + config.static_width, config)
        for name, size in (
            ("node", NODE_FEATURES),
            ("static", config.static_width),
            ("target", len(config.targets)),
        ):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        raw = torch.tensor([RAW_SCALES.get(target, 1.0) for target in config.targets])
        self.register_buffer("raw_scale", raw, persistent=False)

    def fit_scales(self, graphs: GraphTensors, targets: torch.Tensor) -> None:
        """Set the scales from the training split: graphs, and targets (G, T), NaN if unlabelled."""
        _fit_moments(self.node_mean, self.node_std, graphs.x)
        _fit_moments(self.static_mean, self.static_std, graphs.static.log1p())
        _fit_moments(self.target_mean, self.target_std, targets.log())

    def forward(self, graphs: GraphTensors) -> torch.Tensor:
        """Return targets (G, T) in the space of the loss."""
        x = (graphs.x - self.node_mean) / self.node_std
        z = self.encoder(x, graphs)
        static = (graphs.static.log1p() - self.static_mean) / self.static_std
        if self.config.static_order == "code":
            rest = static[:, STATIC_FEATURES:]
            static = torch.cat([static[:, CODE_STATIC_ORDER], rest], dim=1)
        out: torch.Tensor = self.head(torch.cat([z.float(), static], dim=1))
        return functional.softplus(-out) if self.config.target_space == "raw" else out

    def decode(self, out: torch.Tensor) -> torch.Tensor:
        """Return targets in physical units, from the output of `forward`."""
        if self.config.target_space == "raw":
            return out / cast(torch.Tensor, self.raw_scale)
        return (out * self.target_std + self.target_mean).exp()

    def loss(self, out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over the labels that exist; targets (G, T) in physical units."""
        if self.config.target_space == "raw":
            wanted = targets * cast(torch.Tensor, self.raw_scale)
        else:
            wanted = (targets.log() - self.target_mean) / self.target_std
        known = wanted.isfinite()
        function = functional.mse_loss if self.config.loss == "mse" else functional.huber_loss
        return function(out[known], wanted[known])


def _fully_connected(width: int, config: PmgnsConfig) -> nn.Sequential:
    """Return three FC blocks; the last is the output layer."""
    hidden, dropout = config.hidden, config.dropout
    return nn.Sequential(
        *(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(hidden, len(config.targets)),
    )


def _fit_moments(mean: torch.Tensor, std: torch.Tensor, rows: torch.Tensor) -> None:
    """Write the moments of the known entries; a column without spread or labels is left as is."""
    known = rows.isfinite()
    count = known.sum(0).clamp(min=1)
    centre = rows.nan_to_num().sum(0) / count
    spread = ((rows.nan_to_num() - centre).square() * known).sum(0).div(count).sqrt()
    mean.copy_(centre)
    std.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))


# Graph encoders: node rows and data flow in, one embedding per graph out.
#
# To add one: a subclass of `BlockEncoder` that makes its layer, decorated with `@encoder("name")`.
# The layers themselves are torch_geometric's.


class GraphEncoder(nn.Module):
    """Base class of encoders, which compute one embedding z per graph.

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
        layers_per_block: graph layers in a block; D3.5 gives no number, its released code has 2.
        dropout: dropout probability.
        l2_normalise: whether to divide each node's embedding by its norm after each layer, for the
            layer types that define it.
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
