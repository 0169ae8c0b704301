"""Trains and evaluates the default predictor, and writes its checkpoint.

    python -m training.train_hybrid --data ../shared/data --graphs build/graphs \
        --out checkpoints/hybrid-gpu/0.1.0

Steps: measured rows → examples (cached under --work), held-out fits for every split, the shipped
ensemble on all rows, intervals from the held-out errors, power and memory models, checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import Progress

from dippm.graph.model_graph import GRAPH_VERSION
from dippm.features.kernel_features import KERNEL_FEATURE_VERSION
from dippm.features.kernels import KERNEL_CLASSES, KERNEL_VERSION
from training.hybrid_examples import Examples
from training.hybrid_fit import FitSettings, HybridNetwork, fit, predict_log_ms
from training.hybrid_sources import load_examples
from training.memory_fit import fit_memory
from training.metrics import summarise
from training.power_fit import aiconfigurator_samples, evaluate, flagperf_samples

Indices = NDArray[np.int64]
REFERENCE = "timm_infer RTX-3090 torch 2.4.0, cuda 12.4 eager"
HOST_FOR_PREDICTION = "migperf"
FAMILY_FOLDS = 10
SHIPPED_SEEDS = (0, 1, 2)


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write")],
    work: Annotated[Path, typer.Option(help="cache of examples and held-out fits")] = Path("build"),
    steps: Annotated[int, typer.Option(help="optimiser steps of each fit")] = 2500,
) -> None:
    """Train, evaluate, and write the checkpoint."""
    from training.publish_hybrid import publish

    examples = load_examples(data, graphs, work)
    hosts = {name: i for i, name in enumerate(sorted({r.host for r in examples.rows}))}
    settings = FitSettings(steps=steps)
    held_out = {
        name: cross_validate(examples, folds, settings, hosts, work / f"{name}.npz")
        for name, folds in splits(examples).items()
    }
    members = [
        fit_with_progress(
            examples, np.arange(len(examples.rows)), FitSettings(steps=steps, seed=seed), hosts,
            f"shipped member {seed}",
        )
        for seed in SHIPPED_SEEDS
    ]  # fmt: skip
    power, power_report = evaluate(flagperf_samples(data) + aiconfigurator_samples(data))
    memory, memory_report = fit_memory(data, graphs)
    publish(
        out, examples=examples, members=members, hosts=hosts, held_out=held_out,
        power=power, power_report=power_report, memory=memory, memory_report=memory_report,
        settings=settings,
    )  # fmt: skip


def splits(examples: Examples) -> dict[str, list[Indices]]:
    """Return the test rows of each fold, by split name."""
    rows = examples.rows
    families = [r.family for r in rows]
    named = sorted({f for f in families if not f.startswith("operator")})
    order = np.random.default_rng(0).permutation(named)
    by_family = [
        np.flatnonzero(np.isin(families, order[k::FAMILY_FOLDS])) for k in range(FAMILY_FOLDS)
    ]
    devices = [r.device.name for r in rows]
    held = ("A100-40GB", "A100-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB")
    a100 = [np.flatnonzero(np.isin(devices, held))]
    random = np.random.default_rng(42).permutation(len(rows))
    return {"S2": by_family, "S3a": a100, "S0": [np.sort(random[: int(0.15 * len(rows))])]}


def cross_validate(
    examples: Examples,
    folds: Sequence[Indices],
    settings: FitSettings,
    hosts: Mapping[str, int],
    cache: Path,
) -> tuple[Indices, NDArray[np.float64]]:
    """Return (rows, predicted log latency) with each fold predicted by a fit without it.

    An architecture never sits on both sides, whatever the split holds out.
    """
    if cache.exists():
        saved = np.load(cache)
        if int(saved["size"]) == len(examples.rows) and int(saved["steps"]) == settings.steps:
            return saved["rows"], saved["predicted"]
    every = np.arange(len(examples.rows))
    rows, predicted = [], []
    for k, test in enumerate(folds):
        train = np.setdiff1d(every, test)
        network = fit_with_progress(
            examples, train, settings, hosts, f"{cache.stem} fold {k + 1}/{len(folds)}"
        )
        rows.append(test)
        predicted.append(predict_log_ms(network, examples, test, hosts))
    result = np.concatenate(rows), np.concatenate(predicted)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        cache, rows=result[0], predicted=result[1], size=len(examples.rows), steps=settings.steps
    )
    return result


def fit_with_progress(
    examples: Examples,
    train: Indices,
    settings: FitSettings,
    hosts: Mapping[str, int],
    title: str,
) -> HybridNetwork:
    """Fit with a progress bar."""
    with Progress() as progress:
        task = progress.add_task(title, total=settings.steps)

        def advance(loss: float) -> None:
            progress.update(task, advance=1, description=f"{title} loss {loss:.3f}")

        return fit(examples, train, settings, hosts=hosts, advance=advance)


if __name__ == "__main__":
    typer.run(main)
