"""Fits the kernel network: the loss is on the sum of a row's kernels, never on one kernel.

Rows of an operator, or of a chain of a few, and rows of a whole model stand in the same loss, so
that classes that always occur together in models (casts, norms, activations) are told apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.hybrid.fit.batches import Batches, Indices
from training.hybrid.fit.default_offsets import adopt_default_offsets
from training.hybrid.fit.network import KernelNetwork, NetworkSettings, static_features
from training.hybrid.rows.examples import Examples

STEPS = 4000
"""With half of them rows that trained were 3.9 % off on the RTX 3090, nearly as far as rows that
did not (4.3 %): too short."""
DEFAULT_LAUNCH_MS = 0.01
LAUNCH_BOUND_MS = 0.1
"""A machine whose fastest rows take longer than this per launch was never the bottleneck."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit.

    Attributes:
        network: its shape.
        steps: optimiser steps.
        model_rows, operator_rows: rows per step, of whole models and of anything smaller.
        learning_rate: highest; it rises and falls in one cycle.
        table_rate: learning rate of terms per table, over that of the law.
        huber: where the loss of the log error turns from square to linear.
        term_penalty, offset_penalty, head_penalty: pull of what tables have of their own to the
            shared law: terms by class, offset, weights of the last layer.
        head_architectures: a table has weights of its own in the last layer from so many whole
            models by the wall on: fewer would speak for models of which they know nothing.
        balance: exponent of a table's share of the draws over its rows; 1 draws all rows alike,
            0 all tables.
    """

    network: NetworkSettings = field(default_factory=NetworkSettings)
    steps: int = STEPS
    model_rows: int = 32
    operator_rows: int = 256
    learning_rate: float = 3e-3
    table_rate: float = 3.0
    weight_decay: float = 1e-3
    huber: float = 0.1
    term_penalty: float = 0.05
    offset_penalty: float = 0.02
    head_penalty: float = 0.005
    head_architectures: int = 30
    balance: float = 0.5
    seed: int = 0


def fit(
    examples: Examples, train: Indices, settings: FitSettings, *, tables: Mapping[str, int]
) -> KernelNetwork:
    """Fit on the given rows; return the mean of the weights along the last steps.

    Tables of a GPU and mode of which no row trained have the terms that other tables usually add.
    """
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    batches = Batches(examples, tables)
    network = _fresh(examples, batches, train, settings, tables)
    optimizer = torch.optim.AdamW(
        [
            {"params": network.law_parameters, "weight_decay": settings.weight_decay},
            {"params": network.table_parameters, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
    )
    rates = [settings.learning_rate, settings.learning_rate * settings.table_rate]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rates, total_steps=settings.steps, pct_start=max(0.1, 2 / settings.steps)
    )
    draws = _draws(examples, train, settings)
    average = [p.detach().clone() for p in network.parameters()]
    for step in range(settings.steps):
        losses = []
        for pool, weights, count in draws:
            batch = batches.take(random.choice(pool, size=count, p=weights))
            error = network(batch) - batch.label
            loss = nn.functional.huber_loss(error, torch.zeros_like(error), delta=settings.huber)
            losses.append(loss / settings.huber)
        pull = settings.term_penalty * network.terms.square().sum(dim=1).mean()
        pull = pull + settings.offset_penalty * network.offset.square().mean()
        pull = pull + settings.head_penalty * network.heads.square().sum(dim=1).mean()
        optimizer.zero_grad()
        (sum(losses) + pull).backward()
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
    adopt_default_offsets(network, examples, train, tables)
    return network.eval()


def restore(path: Path, settings: FitSettings, *, tables: Mapping[str, int]) -> KernelNetwork:
    """Return the network whose state was saved under a path."""
    state = torch.load(path, weights_only=True)
    network = KernelNetwork(
        state["mean"],
        state["scale"],
        state["static_mean"],
        state["static_scale"],
        torch.zeros(len(tables)),
        settings.network,
    )
    network.load_state_dict(state)
    return network.eval()


@torch.no_grad()
def predict_log_ms(
    network: KernelNetwork, examples: Examples, rows: Indices, *, tables: Mapping[str, int]
) -> NDArray[np.float64]:
    """Return the predicted log latency of rows, shape (len(rows),)."""
    batches = Batches(examples, tables)
    chunks = [
        network(batches.take(chunk)).numpy()
        for chunk in np.array_split(rows, len(rows) // 64 + 1)
        if len(chunk)
    ]
    return np.concatenate(chunks).astype(np.float64)


def _fresh(
    examples: Examples,
    batches: Batches,
    train: Indices,
    settings: FitSettings,
    tables: Mapping[str, int],
) -> KernelNetwork:
    sample = np.random.default_rng(0).choice(train, size=min(len(train), 4000), replace=False)
    batch = batches.take(np.sort(sample))
    static = static_features(batch)
    launch = torch.from_numpy(_launch_start(examples, train, tables))
    return KernelNetwork(
        batch.features.mean(dim=0),
        _scale(batch.features),
        static.mean(dim=0),
        _scale(static),
        launch,
        settings.network,
        _known(examples, train, tables),
        _with_head(examples, train, tables, settings.head_architectures),
    )


def _known(examples: Examples, train: Indices, tables: Mapping[str, int]) -> torch.Tensor:
    """Return the tables of whose GPU some row trains, of whatever table, shape (T,)."""
    trained = {examples.rows[i].device.name for i in train}
    known = torch.zeros(len(tables), dtype=torch.bool)
    for row in examples.rows:
        if row.table in tables:
            known[tables[row.table]] = row.device.name in trained
    return known


def _with_head(
    examples: Examples, train: Indices, tables: Mapping[str, int], least: int
) -> torch.Tensor:
    """Return the tables with at least so many architectures of end-to-end rows, shape (T,)."""
    architectures: dict[str, set[str]] = {name: set() for name in tables}
    for row in (examples.rows[i] for i in train):
        if row.is_end_to_end and row.table in tables:
            architectures[row.table].add(row.architecture)
    found = torch.zeros(len(tables), dtype=torch.bool)
    for name, position in tables.items():
        found[position] = len(architectures[name]) >= least
    return found


def _scale(values: torch.Tensor) -> torch.Tensor:
    scale = values.std(dim=0)
    return torch.where(scale < 1e-3, 1.0, scale)


def _draws(
    examples: Examples, train: Indices, settings: FitSettings
) -> list[tuple[Indices, NDArray[np.float64], int]]:
    """Return pools of models and of the rest, with the weight of each row and rows per step."""
    models = examples.is_model[train]
    pools = ((train[models], settings.model_rows), (train[~models], settings.operator_rows))
    found = []
    for pool, count in pools:
        if len(pool):
            sizes = Counter(examples.rows[i].table for i in pool)
            weights = np.array(
                [sizes[examples.rows[i].table] ** (settings.balance - 1) for i in pool]
            )
            found.append((pool, weights / weights.sum(), count))
    return found


def _launch_start(
    examples: Examples, train: Indices, tables: Mapping[str, int]
) -> NDArray[np.float32]:
    """Return where the launch times start, log ms: the fastest rows per launch of each table.

    Tables whose rows are all bound by the device say nothing and start at the default. A table that
    does not train takes the median of its source, and keeps it.
    """
    per_launch: dict[str, list[float]] = {name: [] for name in tables}
    for i in train:
        row = examples.rows[i]
        if row.timer != "kernel":
            per_launch[row.table].append(row.latency_ms / float(examples.launches[i]))
    known = {name: float(np.quantile(v, 0.05)) for name, v in per_launch.items() if v}
    known = {n: v if v < LAUNCH_BOUND_MS else DEFAULT_LAUNCH_MS for n, v in known.items()}
    start = np.full(len(tables), DEFAULT_LAUNCH_MS)
    for name, position in tables.items():
        kin = [v for n, v in known.items() if n.split()[0] == name.split()[0]]
        start[position] = known.get(name, math.exp(np.median(np.log(kin or [DEFAULT_LAUNCH_MS]))))
    logs: NDArray[np.float32] = np.log(start).astype(np.float32)
    return logs
