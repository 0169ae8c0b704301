"""Networks on the folds of a split: train, predict, measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dataset.join.splits import Fold, Split, file_name
from dippm.estimate.models.pmgns_network import Pmgns, PmgnsConfig
from training.evaluation.held_out import HeldOut
from training.pmgns.examples import Examples
from training.pmgns.trainer import Training, TrainingConfig, predictions, train


@dataclass(frozen=True, slots=True)
class Run:
    """A trained network on one fold.

    Attributes:
        training: the network with its best weights.
        result: learning rate, size, seconds, and errors by part as fractions.
        log_ratios: log(measured / predicted) of the latency in the test part.
        rows: row ids of the test part, in the order of `log_ratios`.
    """

    training: Training
    result: dict[str, Any]
    log_ratios: np.ndarray[Any, np.dtype[np.float64]]
    rows: tuple[str, ...]


def train_fold(
    examples: Examples,
    split: Split,
    fold: Fold,
    network: PmgnsConfig,
    config: TrainingConfig,
    *,
    folder: Path,
) -> Training:
    """Train one network on one fold, on the device that the examples are on."""
    torch.manual_seed(config.seed)
    fresh = Pmgns(network).to(examples.targets.device)
    return train(
        fresh,
        examples.part(split.train(fold)),
        examples.part(fold.validation),
        config,
        folder=folder,
    )


def run_fold(
    examples: Examples,
    split: Split,
    fold: Fold,
    network: PmgnsConfig,
    config: TrainingConfig,
    *,
    folder: Path,
) -> Run:
    """Train on a fold, or finish the run that `folder` holds, and measure it."""
    rows = {"training": split.train(fold), "validation": fold.validation, "test": fold.test}
    start = time.monotonic()
    done = train_fold(examples, split, fold, network, config, folder=folder)
    result: dict[str, Any] = {
        "learning_rate": done.learning_rate,
        "parameters": sum(p.numel() for p in done.network.parameters()),
        "seconds": round(time.monotonic() - start),
        "best_epoch": done.best_epoch,
    }
    ratios = {part: _log_ratios(done.network, examples, ids) for part, ids in rows.items()}
    for part, values in ratios.items():
        ape = np.abs(np.expm1(-values))
        result[part] = {
            "rows": len(values),
            "mape": round(float(ape.mean()), 4),
            "median_ape": round(float(np.median(ape)), 4),
        }
    return Run(done, result, ratios["test"], tuple(fold.test))


def run_network(
    examples: Examples,
    split: Split,
    network: PmgnsConfig,
    config: TrainingConfig,
    *,
    name: str,
    folder: Path,
    table: pd.DataFrame,
) -> HeldOut:
    """Train a network on every fold, or finish what `folder` holds; predict the test parts.

    Args:
        examples: examples of the rows in `table`.
        split: over them.
        network: architecture and targets.
        config: configuration of the training.
        name: name of the network, for people.
        folder: state of the runs.
        table: the selected rows.
    """
    start = time.monotonic()
    parts = []
    for fold in split.folds:
        where = folder / split.name / file_name(fold.name) / network.gnn
        done = train_fold(examples, split, fold, network, config, folder=where)
        graphs, _ = examples.part(fold.test)
        parts.append(_paired(table, fold, predictions(done.network, graphs).cpu(), network.targets))
    return HeldOut(name, split.name, pd.concat(parts), round(time.monotonic() - start, 1))


def _log_ratios(
    network: Pmgns, examples: Examples, rows: Sequence[str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    graphs, targets = examples.part(rows)
    latency = network.config.targets.index("latency_ms")
    predicted = predictions(network, graphs)[:, latency]
    return (targets[:, latency] / predicted).log().double().numpy()


def _paired(
    table: pd.DataFrame, fold: Fold, predicted: torch.Tensor, targets: tuple[str, ...]
) -> pd.DataFrame:
    rows = table.set_index("row_id", drop=False).loc[list(fold.test)].assign(fold=fold.name)
    columns = predicted.double().numpy().T
    return rows.assign(**{f"predicted {t}": c for t, c in zip(targets, columns, strict=True)})
