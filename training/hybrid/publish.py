"""Writes the hybrid checkpoint: weights, configuration, metrics, card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernel_features import N_KINDS
from dippm.graph.model_graph import GRAPH_VERSION
from dippm.models.hybrid import Hybrid
from dippm.models.memory import MemoryModel
from dippm.models.power import PowerModel
from dippm.pretrained.checkpoint import save_checkpoint
from training.evaluation.since import errors_since
from training.hybrid.examples import Examples
from training.hybrid.fit import FitSettings, HybridNetwork
from training.hybrid.report import HeldOut, by_family, intervals, summary

HOST = "migperf A100-80GB eager"
COMMAND = (
    "python -m training.hybrid.train --data <tables> --graphs <raw graphs> "
    "--out checkpoints/hybrid-gpu/<version>"
)


def publish(
    out: Path,
    *,
    examples: Examples,
    members: Sequence[HybridNetwork],
    hosts: Mapping[str, int],
    held_out: HeldOut,
    power: tuple[PowerModel, Mapping[str, Any]],
    memory: tuple[MemoryModel, Mapping[str, Any]],
    settings: FitSettings,
    beside: Sequence[Mapping[str, Any]],
    since: Path | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint folder and load it back.

    The card shows the errors of an earlier version, whose folder is `since`, beside the new ones.
    """
    config = {
        "kind": "hybrid",
        "graph_version": GRAPH_VERSION,
        "feature_version": Hybrid.feature_version,
        "members": len(members),
        "depth": settings.depth,
        "host": _host(members, hosts),
        "memory": asdict(memory[0]),
        "power": asdict(power[0]),
        "intervals": {"latency_ms": intervals(examples, held_out)},
        "seen": _seen(examples),
        "training": asdict(settings),
        "card": {**_card(examples), "changes": changes},
    }
    headlines = summary(examples, held_out) + _power_lines(power[1]) + _memory_lines(memory[1])
    metrics = {
        "summary": headlines,
        **(errors_since(since, headlines) if since else {}),
        "baselines on the same rows and folds, RTX-3090 amp nchw, percent": list(beside),
        "latency by family held out, RTX-3090 amp nchw, percent": by_family(examples, held_out),
        "rows by source": _counts(examples),
    }
    save_checkpoint(out, _tensors(members), config, metrics)


def _tensors(members: Sequence[HybridNetwork]) -> dict[str, Tensor]:
    tensors = {"mean": members[0].mean, "scale": members[0].scale}
    for m, member in enumerate(members):
        for i, layer in enumerate(member.layers):
            tensors[f"{m}.{i}.weight"] = layer.weight.detach()
            tensors[f"{m}.{i}.bias"] = layer.bias.detach()
    return tensors


def _host(members: Sequence[HybridNetwork], hosts: Mapping[str, int]) -> dict[str, float]:
    launch = np.mean([float(m.log_launch_ms[hosts[HOST]].detach()) for m in members])
    copy = np.mean([float(m.log_copy.detach()) for m in members])
    return {"launch_ms": float(np.exp(launch)), "copy_bytes_per_ms": float(np.exp(copy))}


def _seen(examples: Examples) -> dict[str, Any]:
    devices: dict[str, set[str]] = {}
    for row in examples.rows:
        devices.setdefault(row.device.name, set()).add(row.precision)
    models = [row for row in examples.rows if not row.family.startswith("operator")]
    kinds = examples.features[:, :N_KINDS].any(axis=0)
    return {
        "devices": {name: sorted(found) for name, found in sorted(devices.items())},
        "batch_range": [min(r.batch for r in models), max(r.batch for r in models)],
        "kernel_classes": [k for k, seen in zip(KERNEL_CLASSES, kinds, strict=True) if seen],
    }


def _power_lines(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpus = {"flagperf": "A100-40GB", "aiconfigurator": "H200"}
    return [
        {
            "gpu": gpus[source],
            "target": "power_w",
            "data": f"{source}, single operators",
            "split": split,
            "n": found["n"],
            "median_ape": round(100 * found[split]["median_ape"], 2),
            "mape": round(100 * found[split]["mape"], 2),
            "headline": split == "operators held out",
        }
        for source, found in report.items()
        for split in ("operators held out", "source and GPU held out")
    ]


def _memory_lines(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "gpu": "A100-80GB",
            "target": "memory_mb",
            "data": f"migperf {name}, fp32, 7g.80gb",
            "split": "model held out",
            "n": found["n"],
            "median_ape": round(100 * found["median_ape"], 2),
            "mape": round(100 * found["mape"], 2),
            "headline": True,
        }
        for name, found in report.items()
    ]


def _counts(examples: Examples) -> list[dict[str, Any]]:
    counts = Counter((r.source, r.device.name, r.precision, r.mode) for r in examples.rows)
    return [
        {"source": s, "gpu": g, "precision": p, "mode": m, "rows": n}
        for (s, g, p, m), n in sorted(counts.items())
    ]


def _card(examples: Examples) -> dict[str, Any]:
    sources = sorted({row.source for row in examples.rows})
    return {
        "summary": "Gray box: kernels that a model launches, roofline time × learned efficiency, "
        "host floor, liveness memory, power × time. Trained on public measurements.",
        "use": "Inference latency, memory, power, energy and MIG profile from a model graph.",
        "limits": [
            "The host floor (time per launch) is that of one A100 server of 2022; a faster CPU "
            "runs small batches faster than predicted.",
            "Energy is predicted power × predicted latency. Power was learned from single "
            "operators in a steady state; no public table has the energy of vision models on an "
            "A100, so no error of energy on models can be stated.",
            "Memory was learned from three models on one GPU (A100-80GB); the context of other "
            "drivers differs by some hundred MB.",
            "Memory is that of inference under torch.no_grad. D3.5's labels fit a forward pass "
            "that keeps every result for a backward pass (training/studies/seed_memory.py), so "
            "they are higher.",
            "Latency on a MIG slice scales the roofline by multiprocessors and memory slices.",
            "The interval of latency is the 90 % quantile of errors on families held out, by GPU; "
            "it is not conditional on the model.",
        ],
        "never_measured": [
            "Whole vision models on GPUs other than those listed under rows by source.",
            "Recurrent layers, 3-D convolutions and transposed convolutions: their efficiency is "
            "extrapolated from other kernels.",
            "Training steps, int8 and fp8.",
        ],
        "data": [f"{name} (see dataset/README.md for its origin)" for name in sources],
        "command": COMMAND,
    }
