"""Train `pmgns` and write its checkpoint.

    python -m training.pmgns.train --config training/configs/pmgns.yaml --raw RAW_FOLDER \
        --out checkpoints/pmgns-timm-rtx3090/<version>

Two runs: on a random split (S0), for comparison with D3.5, and with whole architectures held out
(S1). The second is the one that is shipped: it stopped on architectures that it had not trained
on, and its errors on a third set of architectures give the intervals.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
import yaml
from rich.console import Console

from dataset.join.splits import by_architecture, random_split
from dippm.estimate.features import FEATURE_VERSION
from dippm.estimate.models.pmgns_network import PmgnsConfig
from dippm.estimate.pretrained import save_checkpoint
from training.evaluation.intervals import residuals
from training.evaluation.version_regression import regression_table
from training.pmgns.examples import GPU, Examples, load_examples
from training.pmgns.folds import Run, run_fold
from training.pmgns.trainer import TrainingConfig
from training.provenance import check_is_new

DATA = "timm_infer (amp, nchw, eager, torch 2.4)"
console = Console(stderr=True)


def main(
    config: Annotated[Path, typer.Option(help="Network and training, YAML.")],
    raw: Annotated[Path, typer.Option(help="Raw graphs, <model>@<size>.json.gz.")],
    out: Annotated[Path, typer.Option(help="Checkpoint folder to write.", callback=check_is_new)],
    data: Annotated[Path | None, typer.Option(help="Measured tables.")] = None,
    runs: Annotated[Path, typer.Option(help="State of the runs.")] = Path("build/pmgns"),
    graphs: Annotated[Path, typer.Option(help="Encoded graphs.")] = Path("build/table3/graphs"),
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    since: Annotated[Path | None, typer.Option(help="Earlier version, to compare with.")] = None,
    changes: Annotated[str, typer.Option(help="What is new, for the card.")] = "First version.",
) -> None:
    """Train both runs, or finish them, and write the checkpoint."""
    torch.set_num_threads(threads)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    network = PmgnsConfig.variant(**{"name": "paper", **_renamed(document["network"])})
    training = TrainingConfig(**document["training"])
    examples = load_examples(raw, graphs, network, data=data)
    table = examples.table()
    s0, s1 = random_split(table), by_architecture(table)
    done = {}
    for name, split, fold in (("S1", s1, s1.folds[0]), ("S0", s0, s0.folds[0])):
        folder = runs / (name if name == "S0" else f"{name}/{fold.name}") / network.gnn
        console.print(name)
        done[name] = run_fold(examples, split, fold, network, training, folder=folder)
    target = Path("checkpoints", *out.resolve().parts[-2:])
    command = f"python -m training.pmgns.train --config {config} --raw RAW_FOLDER --out {target}"
    shipped = done["S1"].training.network
    document = _config(examples, done["S1"], training, command)
    document["card"]["changes"] = changes
    metrics = _metrics(examples, done)
    if since:
        metrics |= regression_table(since, metrics["summary"])
    save_checkpoint(out, shipped.state_dict(), document, metrics)


def _renamed(network: Mapping[str, Any]) -> dict[str, Any]:
    return {("name" if key == "variant" else key): value for key, value in network.items()}


def _config(examples: Examples, run: Run, training: TrainingConfig, command: str) -> dict[str, Any]:
    batches = [int(graph.static[0, 1]) for graph in examples.graphs]
    nodes = [graph.x.shape[0] for graph in examples.graphs]
    network = run.training.network.config
    return {
        "kind": "pmgns",
        "graph_version": examples.graph_version,
        "feature_version": FEATURE_VERSION,
        "seed": training.seed,
        "network": network.to_dict(),
        "conditions": {
            "devices": [GPU],
            "precision": ["amp"],
            "mode": ["eager"],
            "timer": ["wall"],
            "channels_last": [False],
        },
        "residuals": {"latency_ms": residuals(run.log_ratios)},
        "seen": {
            "operators": list(examples.operators),
            "batch": [min(batches), max(batches)],
            "nodes": [min(nodes), max(nodes)],
        },
        "card": {
            "summary": "D3.5's network (three GraphSAGE blocks, static features, three FC blocks), "
            "trained on measured latencies of timm models on one GPU: the reference point.",
            "use": "Comparing with D3.5's method on a split that does not leak. For predictions "
            "take the default checkpoint.",
            "limits": "Whole GPU, automatic mixed precision, eager, NCHW images; other conditions "
            "are refused. Each training model was measured at one batch size only, so the effect "
            "of the batch is extrapolated.",
            "devices": GPU,
            "never_measured": "Memory, power and energy: no public table has them for vision "
            "graphs. Any batch but the one that filled the GPU.",
            "data": f"{len(examples)} rows of {DATA}, {len(set(examples.architectures))} "
            f"architectures, {len(set(examples.families))} families.",
            "command": command,
        },
    }


def _metrics(examples: Examples, runs: Mapping[str, Run]) -> dict[str, Any]:
    summary = [
        {
            "gpu": GPU,
            "target": "latency",
            "data": DATA,
            "split": name,
            **_percent(run.result["test"]),
        }
        for name, run in runs.items()
    ]
    parts = [
        {"split": name, "part": part, **_percent(run.result[part])}
        for name, run in runs.items()
        for part in ("training", "validation", "test")
    ]
    family_of = dict(zip(examples.rows, examples.families, strict=True))
    errors: dict[str, list[float]] = {}
    grouped = runs["S1"]
    for row, ratio in zip(grouped.rows, grouped.log_ratios, strict=True):
        errors.setdefault(family_of[row], []).append(100 * abs(float(np.expm1(-ratio))))
    families = [
        {
            "family": family,
            "n": len(e),
            "median_ape": float(np.median(e)),
            "mape": float(np.mean(e)),
        }
        for family, e in sorted(errors.items())
    ]
    training = [
        {
            "split": name,
            "learning_rate": run.result["learning_rate"],
            "epochs": len(run.training.log),
            "best_epoch": run.result["best_epoch"],
            "parameters": run.result["parameters"],
        }
        for name, run in runs.items()
    ]
    return {
        "summary": summary,
        "splits": {
            "S0": "random, 70/15/15, seed 42: siblings of a test model train",
            "S1": "one fold of five of whole architectures: no architecture on both sides",
        },
        "parts": parts,
        "S1_test_by_family": families,
        "training": training,
    }


def _percent(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"n": part["rows"], "median_ape": 100 * part["median_ape"], "mape": 100 * part["mape"]}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    typer.run(main)
