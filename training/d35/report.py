"""Errors of the experiment's networks, and their tables beside D3.5's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

NETWORKS = {"gat": "GAT", "gcn": "GCN", "gin": "GIN", "mlp": "MLP", "sage": "GraphSAGE"}
D35_TABLE3 = {
    "gat": (0.497, 0.379, 0.367),
    "gcn": (0.212, 0.178, 0.175),
    "gin": (0.488, 0.394, 0.382),
    "mlp": (0.371, 0.387, 0.366),
    "sage": (0.182, 0.159, 0.160),
}
D35_LONG = (0.041, 0.023, 0.019)
"""Of GraphSAGE after 500 epochs: MAPE of training, validation and test."""
PARTS = ("training", "validation", "test")
SPLITS = {
    "S0": "random 70/15/15: other batches and sizes of a test architecture train",
    "S1": "whole architectures held out",
    "S2": "one family held out",
    "all": "everything but a tenth of the architectures, which stops it; this one ships",
}


def errors_by_target(
    predicted: torch.Tensor, labels: torch.Tensor, targets: Sequence[str]
) -> dict[str, Any]:
    """Return rows, MAPE over all labels as D3.5 has it, and MAPE and median by target.

    Args:
        predicted: (G, T), in physical units.
        labels: (G, T), NaN where there is none.
        targets: names of the columns.
    """
    errors = (predicted / labels - 1).abs().double()
    known = labels.isfinite()
    result: dict[str, Any] = {"rows": len(labels), "mape": _rounded(errors[known].mean())}
    for column, target in enumerate(targets):
        of_target = errors[known[:, column], column]
        if len(of_target):
            result[target] = {
                "mape": _rounded(of_target.mean()),
                "median_ape": _rounded(of_target.median()),
            }
    return result


def markdown(document: Mapping[str, Any]) -> str:
    """Return the tables of a document of results, see `training.d35.experiment`."""
    labels, results = document["labels"], document["results"]
    lines = [
        "# D3.5's experiment",
        "",
        f"`{document['command']}`",
        "",
        f"{document['graphs']:,} graphs of {document['families']} families, "
        f"{document['architectures']:,} architectures. Labels: {labels['provenance']}, by "
        f"{labels['checkpoint']} for an A100-40GB, eager float32 with autograd. So an error here "
        "says how well a network imitates that predictor, not how well it predicts a GPU. "
        "MAPE as a fraction, over memory, latency and energy together.",
        "",
        "## Table 3: 10 epochs, random split",
        "",
        "| network | training | validation | test | D3.5 | rate | batch | graphs/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gnn, name in NETWORKS.items():
        if found := results.get(f"table3/S0/0/{gnn}"):
            reported = " / ".join(f"{value:.3f}" for value in D35_TABLE3[gnn])
            lines.append(f"| {name} | {_cells(found)} | {reported} | {_settings(found)} |")
    if found := results.get("finder/S0/0/sage"):
        lines.append(
            f"| GraphSAGE, rate of the range test | {_cells(found)} | | {_settings(found)} |"
        )
    lines += [
        "",
        "## Longer",
        "",
        f"D3.5 after 500 epochs: {' / '.join(map(str, D35_LONG))}.",
        "",
        "| run | split | held out | width | epochs | training | validation | test | memory "
        "| latency | energy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, found in results.items():
        name, split, _, gnn = key.split("/")
        if name in ("table3", "finder"):
            continue
        part = found.get("test") or found["validation"]
        by_target = [part.get(t, {}).get("mape") for t in ("memory_mb", "latency_ms", "energy_j")]
        lines.append(
            f"| {name} {NETWORKS[gnn]} | {split} | {found['fold']} | {found['hidden']} "
            f"| {found['epochs']} | {_cells(found)} | {' | '.join(map(_cell, by_target))} |"
        )
    lines += ["", *(f"* {name}: {about}" for name, about in SPLITS.items())]
    return "\n".join(lines) + "\n"


def _cells(found: Mapping[str, Any]) -> str:
    return " | ".join(_cell(found.get(part, {}).get("mape")) for part in PARTS)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _settings(found: Mapping[str, Any]) -> str:
    return f"{found['learning_rate']:.3g} | {found['batch_size']} | {found['graphs_per_s']}"


def _rounded(value: torch.Tensor) -> float:
    return round(value.item(), 5)
