"""Fits the efficiency network: the loss is on the sum of a row's kernels, never on one kernel.

Rows of one operator and rows of a whole model stand in the same loss, so that classes that always
occur together in models (casts, norms, activations) are separated by the operator rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dippm.features.kernel_features import N_DEVICE_FEATURES, N_FEATURES
from dippm.models.efficiency import SLOWDOWN_RANGE
from dippm.models.host import OVERLAP_POWER
from training.hybrid.examples import Examples

Indices = NDArray[np.int64]
HUBER_DELTA = 0.1
DEFAULT_LAUNCH_MS = 0.01
LAUNCH_BOUND_MS = 0.1
"""A host whose fastest rows take longer than this per launch was never the bottleneck."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit.

    Attributes:
        hidden: width of the two hidden layers.
        steps: optimiser steps.
        model_rows, operator_rows: rows of each kind per step.
        device_dropout: share of steps' rows whose raw device descriptors are hidden.
    """

    hidden: int = 112
    depth: int = 3
    steps: int = 4000
    model_rows: int = 112
    operator_rows: int = 448
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    device_dropout: float = 0.3
    offset_penalty: float = 2.0
    seed: int = 0


class HybridNetwork(nn.Module):
    """Efficiency network with the host terms and source offsets that labels need.

    Args:
        mean, scale: of the features, shape (N_FEATURES,).
        hosts: names of the machines; each has a launch time and a log offset of its own.
    """

    def __init__(
        self, mean: Tensor, scale: Tensor, hosts: Sequence[str], settings: FitSettings
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        widths = [N_FEATURES] + [settings.hidden] * (settings.depth - 1) + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.constant_(self.layers[-1].bias, 0.4)
        self.log_launch_ms = nn.Parameter(torch.full((len(hosts),), math.log(0.01)))
        self.offset = nn.Parameter(torch.zeros(len(hosts)))
        self.log_copy = nn.Parameter(torch.tensor(math.log(8e6)))
        self.device_dropout = settings.device_dropout

    def log_slowdown(self, features: Tensor) -> Tensor:
        """Return the log slow-down of each kernel, shape (K,)."""
        x = (features - self.mean) / self.scale
        if self.training and self.device_dropout:
            keep = (torch.rand(len(x), 1) >= self.device_dropout).to(x.dtype)
            x = torch.cat([x[:, :-N_DEVICE_FEATURES], x[:, -N_DEVICE_FEATURES:] * keep], dim=1)
        for layer in self.layers[:-1]:
            x = torch.nn.functional.silu(layer(x))
        out = self.layers[-1](x)[:, 0]
        return out.clamp(*SLOWDOWN_RANGE)

    def forward(self, batch: Batch) -> Tensor:
        """Return the predicted log latency of each row, shape (R,)."""
        kernel_ms = torch.exp(batch.log_roofline + self.log_slowdown(batch.features)) * batch.count
        device = batch.serial_ms.index_add(0, batch.row, kernel_ms)
        host = batch.launches * torch.exp(self.log_launch_ms)[batch.host]
        host = torch.where(batch.kernel_timer, torch.zeros_like(host), host)
        wall = _smooth_max(device, host)
        copy = torch.where(batch.copies, batch.input_bytes / torch.exp(self.log_copy), 0.0)
        return torch.log(wall + copy) + self.offset[batch.host]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step as tensors."""

    rows: int
    features: Tensor
    log_roofline: Tensor
    count: Tensor
    row: Tensor
    host: Tensor
    launches: Tensor
    input_bytes: Tensor
    serial_ms: Tensor
    kernel_timer: Tensor
    copies: Tensor
    label: Tensor


class Batches:
    """Cuts batches of rows out of examples."""

    def __init__(self, examples: Examples, hosts: Mapping[str, int]) -> None:
        self.examples = examples
        rows = examples.rows
        self.host = np.array([hosts[r.host] for r in rows])
        self.kernel_timer = np.array([r.timer == "kernel" for r in rows])
        self.copies = np.array([r.timer == "wall+copy" for r in rows])
        self.label = examples.log_latency

    def take(self, chosen: Indices) -> Batch:
        """Return the batch of these rows."""
        e = self.examples
        starts, ends = e.start[chosen], e.start[chosen + 1]
        sizes = ends - starts
        row = np.repeat(np.arange(len(chosen)), sizes)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kernels = np.repeat(starts, sizes) + within
        tensor = torch.from_numpy
        return Batch(
            rows=len(chosen),
            features=tensor(e.features[kernels]),
            log_roofline=tensor(e.log_roofline[kernels]),
            count=tensor(e.count[kernels]),
            row=tensor(row),
            host=tensor(self.host[chosen]),
            launches=tensor(e.launches[chosen]),
            input_bytes=tensor(e.input_bytes[chosen]),
            serial_ms=tensor(e.serial_ms[chosen]),
            kernel_timer=tensor(self.kernel_timer[chosen]),
            copies=tensor(self.copies[chosen]),
            label=tensor(self.label[chosen]),
        )


def fit(
    examples: Examples,
    train: Indices,
    settings: FitSettings,
    *,
    hosts: Mapping[str, int],
) -> HybridNetwork:
    """Fit on the given rows.

    Every step draws model rows and operator rows, each source with equal weight by the square
    root of its size, so that no single source drowns the others.
    """
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    batches = Batches(examples, hosts)
    mean, scale = _standardisation(examples, train)
    network = HybridNetwork(mean, scale, list(hosts), settings)
    with torch.no_grad():
        network.log_launch_ms.copy_(torch.from_numpy(_launch_start(examples, train, hosts)))
    optimizer = torch.optim.AdamW(
        [
            {"params": network.layers.parameters(), "weight_decay": settings.weight_decay},
            {
                "params": [network.log_launch_ms, network.offset, network.log_copy],
                "weight_decay": 0.0,
                "lr": settings.learning_rate * 3,
            },
        ],
        lr=settings.learning_rate,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=[settings.learning_rate, settings.learning_rate * 3],
        total_steps=settings.steps,
        pct_start=0.1,
    )
    sizes = np.diff(examples.start)
    single = np.array([sizes[i] <= 4 for i in train])
    draws = [
        (train[chosen], _weights(examples, train[chosen]), count)
        for chosen, count in ((~single, settings.model_rows), (single, settings.operator_rows))
        if chosen.any()
    ]
    average = [p.detach().clone() for p in network.parameters()]
    for step in range(settings.steps):
        losses = []
        for pool, weights, count in draws:
            batch = batches.take(random.choice(pool, size=count, p=weights))
            error = network(batch) - batch.label
            losses.append(
                nn.functional.huber_loss(error, torch.zeros_like(error), delta=HUBER_DELTA)
                / HUBER_DELTA
            )
        loss = sum(losses) + settings.offset_penalty * 0.01 * network.offset.square().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(0.998, (step + 1) / (step + 10))
        with torch.no_grad():
            for kept, now in zip(average, network.parameters(), strict=True):
                kept.lerp_(now, 1 - decay)
    with torch.no_grad():
        for kept, now in zip(average, network.parameters(), strict=True):
            now.copy_(kept)
    return network.eval()


def restore(path: Path, hosts: Mapping[str, int], settings: FitSettings) -> HybridNetwork:
    """Return the network whose state was saved under a path."""
    blank = torch.zeros(N_FEATURES)
    network = HybridNetwork(blank, blank.clone(), list(hosts), settings)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


@torch.no_grad()
def predict_log_ms(
    network: HybridNetwork, examples: Examples, rows: Indices, hosts: Mapping[str, int]
) -> NDArray[np.float64]:
    """Return the predicted log latency of rows, shape (len(rows),)."""
    batches = Batches(examples, hosts)
    chunks = [
        network(batches.take(chunk)).numpy()
        for chunk in np.array_split(rows, len(rows) // 256 + 1)
        if len(chunk)
    ]
    return np.concatenate(chunks).astype(np.float64)


def _smooth_max(a: Tensor, b: Tensor) -> Tensor:
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    ratio = (low / high.clamp_min(1e-12)).clamp_min(1e-6)
    return high * (1 + ratio**OVERLAP_POWER) ** (1 / OVERLAP_POWER)


def _standardisation(examples: Examples, train: Indices) -> tuple[Tensor, Tensor]:
    sample = np.random.default_rng(0).choice(train, size=min(len(train), 4000), replace=False)
    kernels = np.concatenate([np.arange(examples.start[i], examples.start[i + 1]) for i in sample])
    features = examples.features[kernels]
    scale = features.std(axis=0)
    scale[scale < 1e-3] = 1.0
    return torch.from_numpy(features.mean(axis=0)), torch.from_numpy(scale)


def _launch_start(
    examples: Examples, train: Indices, hosts: Mapping[str, int]
) -> NDArray[np.float32]:
    """Return where the launch times start, log ms: the fastest rows per launch of each host.

    Hosts whose rows are all bound by the device say nothing and start at the default. A host that
    does not train takes the median of its source, and keeps it.
    """
    per_launch: dict[str, list[float]] = {name: [] for name in hosts}
    for i in train:
        row = examples.rows[i]
        if row.timer != "kernel":
            per_launch[row.host].append(row.latency_ms / float(examples.launches[i]))
    known = {name: float(np.quantile(v, 0.05)) for name, v in per_launch.items() if v}
    known = {n: v if v < LAUNCH_BOUND_MS else DEFAULT_LAUNCH_MS for n, v in known.items()}
    start = np.full(len(hosts), DEFAULT_LAUNCH_MS)
    for name, position in hosts.items():
        kin = [v for n, v in known.items() if n.split()[0] == name.split()[0]]
        start[position] = known.get(name, float(np.median(kin or [DEFAULT_LAUNCH_MS])))
    return np.log(start).astype(np.float32)


def _weights(examples: Examples, rows: Indices) -> NDArray[np.float64]:
    groups = [(examples.rows[i].source, examples.rows[i].device.name) for i in rows]
    sizes: dict[tuple[str, str], int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    weights = np.array([1 / math.sqrt(sizes[group]) for group in groups])
    return weights / weights.sum()
