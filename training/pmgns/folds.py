"""One network on one fold: train, then measure all three parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dataset.splits import Fold, Split
from dippm.models.pmgns_network import Pmgns, PmgnsConfig
from training.pmgns.examples import Examples
from training.pmgns.trainer import Training, TrainingConfig, predictions, train

COVERAGE = 0.9


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
    torch.manual_seed(config.seed)
    fresh = Pmgns(network)
    start = time.monotonic()
    done = train(
        fresh,
        examples.part(rows["training"]),
        examples.part(rows["validation"]),
        config,
        folder=folder,
    )
    result: dict[str, Any] = {
        "learning_rate": done.learning_rate,
        "parameters": sum(p.numel() for p in fresh.parameters()),
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


def residuals(log_ratios: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Return what turns a prediction into an interval; see `dippm.models.pmgns`."""
    tail = (1 - COVERAGE) / 2
    low, high, upper = np.quantile(log_ratios, [tail, 1 - tail, 0.99])
    return {
        "coverage": COVERAGE,
        "low": float(min(low, 0.0)),
        "high": float(max(high, 0.0)),
        "upper_99": float(max(upper, 0.0)),
    }


def _log_ratios(
    network: Pmgns, examples: Examples, rows: Sequence[str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    graphs, targets = examples.part(rows)
    latency = network.config.targets.index("latency_ms")
    predicted = predictions(network, graphs)[:, latency]
    return (targets[:, latency] / predicted).log().double().numpy()
