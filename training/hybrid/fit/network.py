"""The network of the default predictor, with what the labels need besides.

D3.5's shape: nodes with features, three GraphSAGE blocks, static features, a head of fully
connected layers. Here a node is a kernel, the head tells how much slower it runs than its roofline,
and the readout is the sum of the kernels' times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from dippm.estimate.features.kernel_features import N_DEVICE_FEATURES, N_FEATURES, N_KINDS
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.kernel_network import ROUNDS, SLOWDOWN_RANGE, STATIC_FEATURES
from training.hybrid.fit.batches import Batch

START_LOG_SLOWDOWN = 0.4
START_COPY_BYTES_PER_MS = 8e6
N_STATIC = len(STATIC_FEATURES)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Shape of the network.

    Attributes:
        width: width of node embeddings and of the head.
        rounds: GraphSAGE blocks; with 0 each kernel is seen alone.
        device_dropout: share of rows whose raw device descriptors are hidden while training.
        static_dropout: share of rows whose static features are hidden while training.
        head_dropout: share of rows that do without the head of their table while training, so that
            the shared law learns to speak alone.
    """

    width: int = 64
    rounds: int = ROUNDS
    device_dropout: float = 0.3
    static_dropout: float = 0.3
    head_dropout: float = 0.5


class GraphSageBlock(nn.Module):
    """x + silu(W x + V mean of what it reads + U mean of what reads it), Hamilton et al. 2017."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = SAGEConv(width, width)
        self.outward = SAGEConv(width, width, root_weight=False, bias=False)

    def forward(self, x: Tensor, inward: Tensor, outward: Tensor) -> Tensor:
        """Return node embeddings, (K, width), from those before."""
        z = self.inward(x, inward) + self.outward(x, outward)
        return x + nn.functional.silu(z)


class KernelNetwork(nn.Module):
    """Log slow-down of each kernel; latency of each row.

    Args:
        mean, scale: moments of the features, (N_FEATURES,).
        static_mean, static_scale: moments of the static features, (N_STATIC,).
        log_launch_ms: where the launch time of each table's machine starts, (T,).
        settings: shape.
        known: tables of whose GPU some row trains, (T,); None for all.
        with_head: tables that are predicted with their own weights in the last layer, (T,); None
            for all. Others have them in training alone, where they keep what is odd about a table
            out of the shared law.
    """

    mean: Tensor
    scale: Tensor
    static_mean: Tensor
    static_scale: Tensor
    usual: Tensor
    known: Tensor
    with_head: Tensor

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        static_mean: Tensor,
        static_scale: Tensor,
        log_launch_ms: Tensor,
        settings: NetworkSettings,
        known: Tensor | None = None,
        with_head: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        for name, tensor in (
            ("mean", mean),
            ("scale", scale),
            ("static_mean", static_mean),
            ("static_scale", static_scale),
        ):
            self.register_buffer(name, tensor)
        width, tables = settings.width, len(log_launch_ms)
        self.enter = nn.Linear(N_FEATURES, width)
        self.blocks = nn.ModuleList(GraphSageBlock(width) for _ in range(settings.rounds))
        self.head = nn.Linear(width + N_STATIC, width)
        self.last = nn.Linear(width, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.last.bias, START_LOG_SLOWDOWN)
        self.log_launch_ms = nn.Parameter(log_launch_ms.clone())
        self.register_buffer("usual", log_launch_ms.median())
        for name, given in (("known", known), ("with_head", with_head)):
            everything = torch.ones(tables, dtype=torch.bool)
            self.register_buffer(name, everything if given is None else given)
        self.log_copy = nn.Parameter(torch.tensor(START_COPY_BYTES_PER_MS).log())
        self.terms = nn.Parameter(torch.zeros(tables, N_KINDS))
        self.offset = nn.Parameter(torch.zeros(tables))
        self.heads = nn.Parameter(torch.zeros(tables, width))

    @property
    def table_parameters(self) -> Sequence[nn.Parameter]:
        """Return what belongs to tables and machines, not to kernels."""
        return [self.log_launch_ms, self.log_copy, self.terms, self.offset, self.heads]

    @property
    def law_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the law that all tables share."""
        away = {id(p) for p in self.table_parameters}
        return [p for p in self.parameters() if id(p) not in away]

    def log_slowdown(self, batch: Batch) -> Tensor:
        """Return how much slower than its roofline each kernel runs, (K,), without `terms`.

        To the last layer's weights, which all tables share, comes the head of the row's table;
        half of the rows that train, and rows of tables without one, do with the shared ones alone.
        Descriptors are hidden for some rows in training, and always for a GPU that did not train,
        as `dippm.estimate.models.kernel_network` does; a row of no known table shows them.
        """
        x = (batch.features - self.mean) / self.scale
        static = (static_features(batch) - self.static_mean) / self.static_scale
        shown = (self.known[batch.table.clamp_min(0)] | (batch.table < 0)).float()[:, None]
        if self.training:
            shown = _kept(len(batch.table), self.settings.device_dropout)
        device = x[:, -N_DEVICE_FEATURES:] * shown[batch.row]
        x = torch.cat([x[:, :-N_DEVICE_FEATURES], device], dim=1)
        if self.training:
            static = static * _kept(len(batch.table), self.settings.static_dropout)
        h = nn.functional.silu(self.enter(x))
        for block in self.blocks:
            h = block(h, batch.inward, batch.outward)
        h = nn.functional.silu(self.head(torch.cat([h, static[batch.row]], dim=1)))
        table = batch.table.clamp_min(0)
        of_own = (self.with_head[table] & (batch.table >= 0)).float()[:, None]
        if self.training:
            of_own = _kept(len(table), self.settings.head_dropout)
        heads = self.heads[table] * of_own
        found = self.last(h)[:, 0] + (h * heads[batch.row]).sum(dim=1)
        return bounded(found, *SLOWDOWN_RANGE)

    def forward(self, batch: Batch) -> Tensor:
        """Return the predicted log latency of each row, (R,).

        A row of no table that trained takes the shared law alone, and the usual launch time.
        """
        known = (batch.table >= 0).to(batch.label.dtype)
        table = batch.table.clamp_min(0)
        terms = (self.terms[table] * known[:, None])[batch.row]
        slow = self.log_slowdown(batch) + (terms * batch.features[:, :N_KINDS]).sum(dim=1)
        kernel_ms = torch.exp(batch.log_roofline + slow) * batch.count
        device = batch.serial_ms.index_add(0, batch.row, kernel_ms)
        launch = torch.exp(torch.where(batch.table >= 0, self.log_launch_ms[table], self.usual))
        host = batch.launches * launch
        host = torch.where(batch.kernel_timer, torch.zeros_like(host), host)
        wall = smooth_max(device, host)
        copy = torch.where(batch.copies, batch.input_bytes / torch.exp(self.log_copy), 0.0)
        return torch.log(wall + copy) + self.offset[table] * known


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Return x clamped, with the gradient of what descends back into the bounds.

    `clamp` has no gradient beyond them, so a class of kernels that was once pushed there stays: in
    9 of 45 fits one did, and answered 16 times too slow.
    """
    return _Bounded.apply(x, low, high)


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (low, high), (gradient,) = ctx.saved_tensors, ctx.bounds, gradients
        leads_away = ((x < low) & (gradient > 0)) | ((x > high) & (gradient < 0))
        return gradient.masked_fill(leads_away, 0.0), None, None


def static_features(batch: Batch) -> Tensor:
    """Return STATIC_FEATURES of each row, (R, 4)."""
    times = torch.exp(batch.log_roofline) * batch.count
    rows = len(batch.table)
    total = times.new_zeros(rows).index_add(0, batch.row, times)
    single = torch.exp(batch.log_roofline)
    largest = times.new_zeros(rows).scatter_reduce(0, batch.row, single, "amax")
    return torch.stack(
        [
            torch.log(total),
            torch.log(batch.launches.clamp_min(1.0)),
            torch.log1p(batch.input_bytes),
            torch.log(largest / total),
        ],
        dim=1,
    )


def smooth_max(a: Tensor, b: Tensor) -> Tensor:
    """Return (a^p + b^p)^(1/p) with p = OVERLAP_POWER."""
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    ratio = (low / high.clamp_min(1e-12)).clamp_min(1e-6)
    return high * (1 + ratio**OVERLAP_POWER) ** (1 / OVERLAP_POWER)


def _kept(rows: int, dropout: float) -> Tensor:
    return (torch.rand(rows, 1) >= dropout).float()
