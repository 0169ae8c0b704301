"""Trains and evaluates the default predictor, and writes its checkpoint.

    python -m training.hybrid.train --data ../shared/data --graphs build/graphs \
        --out checkpoints/hybrid-gpu/<version>

Steps: measured rows → examples (cached under --work), held-out fits for every split, the shipped
ensemble on all rows, intervals from the held-out errors, power and memory models, checkpoint.
Every fit is kept under --work, so a run that was cut off goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.progress import Progress

from training.hybrid.baselines import baselines
from training.hybrid.examples import Examples
from training.hybrid.fit import FitSettings, fit, predict_log_ms, restore
from training.hybrid.memory import fit_memory
from training.hybrid.power import aiconfigurator_samples, evaluate, flagperf_samples
from training.hybrid.publish import publish
from training.hybrid.sources import load_examples

Indices = NDArray[np.int64]
FAMILY_FOLDS, ARCHITECTURE_FOLDS = 10, 5
SHIPPED_SEEDS = (0, 1, 2)
SEEDS_OF = {"S2": SHIPPED_SEEDS}
"""Splits whose rows an ensemble like the shipped one predicts; elsewhere one member does."""
A100 = ("A100-40GB", "A100-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB")
_SHARED: dict[str, Any] = {}
"""Examples for the forked fits."""


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write")],
    work: Annotated[Path, typer.Option(help="cache of examples and fits")] = Path("build"),
    steps: Annotated[int, typer.Option(help="optimiser steps of each fit")] = 3000,
    since: Annotated[Path | None, typer.Option(help="earlier version, to compare with")] = None,
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = "First version.",
) -> None:
    """Train, evaluate, and write the checkpoint."""
    examples = load_examples(data, graphs, work)
    hosts = {name: i for i, name in enumerate(sorted({r.host for r in examples.rows}))}
    settings = FitSettings(steps=steps)
    folds = splits(examples)
    tasks = [
        *(
            (_fit_name(split, k, seed), test, seed)
            for split, parts in folds.items()
            for seed in SEEDS_OF.get(split, (0,))
            for k, test in enumerate(parts)
        ),
        *((f"shipped-{seed}", np.array([], dtype=np.int64), seed) for seed in SHIPPED_SEEDS),
    ]
    _SHARED.update(examples=examples, hosts=hosts, settings=settings, work=work)
    run(tasks)
    held_out = {
        name: _held_out(examples, parts, work, name, hosts) for name, parts in folds.items()
    }
    members = [restore(work / f"fit-shipped-{seed}.pt", hosts, settings) for seed in SHIPPED_SEEDS]
    publish(
        out,
        examples=examples,
        members=members,
        hosts=hosts,
        held_out=held_out,
        power=evaluate(flagperf_samples(data) + aiconfigurator_samples(data)),
        memory=fit_memory(data, graphs),
        beside=baselines(examples, folds, lambda split, t: _training_rows(examples, split, t)),
        settings=settings,
        since=since,
        changes=changes,
    )
    typer.echo(f"wrote {out}")


def splits(examples: Examples) -> dict[str, list[Indices]]:
    """Return the test rows of each fold, by split name."""
    rows = examples.rows
    families = np.array([r.family for r in rows])
    architectures = np.array([r.architecture for r in rows])
    devices = np.array([r.device.name for r in rows])
    operators = np.char.startswith(families.astype(str), "operator")
    random = np.random.default_rng(42)
    s0 = np.sort(random.permutation(len(rows))[: round(0.15 * len(rows))])
    return {
        "S0": [s0],
        "S1": list(_folds(architectures, ARCHITECTURE_FOLDS, random, np.ones(len(rows), bool))),
        "S2": list(_folds(families, FAMILY_FOLDS, random, ~operators)),
        "S3a": [np.flatnonzero(np.isin(devices, A100))],
    }


def _folds(
    keys: NDArray[np.str_], count: int, random: np.random.Generator, usable: NDArray[np.bool_]
) -> Iterator[Indices]:
    order = random.permutation(np.unique(keys[usable]))
    for k in range(count):
        yield np.flatnonzero(np.isin(keys, order[k::count]) & usable)


def training_rows(examples: Examples, test: Indices, *, by_architecture: bool) -> Indices:
    """Return the rows that may train: never a test row, nor, if asked, its architecture."""
    every = np.arange(len(examples.rows))
    if not by_architecture:
        return np.setdiff1d(every, test)
    architectures = np.array([r.architecture for r in examples.rows])
    return np.flatnonzero(~np.isin(architectures, np.unique(architectures[test])))


def _training_rows(examples: Examples, split: str, test: Indices) -> Indices:
    return training_rows(examples, test, by_architecture=split in ("S1", "S2"))


def run(tasks: Sequence[tuple[str, Indices, int]]) -> None:
    """Fit what is not yet on disk, one process per core."""
    todo = [task for task in tasks if not (_SHARED["work"] / f"fit-{task[0]}.pt").exists()]
    with Progress() as progress, get_context("fork").Pool() as pool:
        bar = progress.add_task("fits", total=len(todo))
        for name in pool.imap_unordered(_fit_one, todo):
            progress.update(bar, advance=1, description=f"fits (last: {name})")


def _fit_one(task: tuple[str, Indices, int]) -> str:
    name, test, seed = task
    torch.set_num_threads(1)
    examples, hosts = _SHARED["examples"], _SHARED["hosts"]
    train = _training_rows(examples, name.partition("-")[0], test)
    network = fit(examples, train, replace(_SHARED["settings"], seed=seed), hosts=hosts)
    torch.save(network.state_dict(), _SHARED["work"] / f"fit-{name}.pt")
    return name


def _held_out(
    examples: Examples,
    parts: Sequence[Indices],
    work: Path,
    name: str,
    hosts: Mapping[str, int],
) -> tuple[Indices, NDArray[np.float64]]:
    predicted = []
    for k, test in enumerate(parts):
        paths = [work / f"fit-{_fit_name(name, k, s)}.pt" for s in SEEDS_OF.get(name, (0,))]
        members = [restore(path, hosts, _SHARED["settings"]) for path in paths]
        answers = [predict_log_ms(member, examples, test, hosts) for member in members]
        predicted.append(np.mean(answers, axis=0))
    return np.concatenate(list(parts)), np.concatenate(predicted)


def _fit_name(split: str, fold: int, seed: int) -> str:
    return f"{split}-{fold}" + (f"-seed{seed}" if seed else "")


if __name__ == "__main__":
    typer.run(main)
