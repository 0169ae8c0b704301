"""Writes the checkpoint for training steps: weights, configuration, metrics, card."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost
from safetensors.numpy import load_file
from torch import Tensor

from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernel_features import N_KINDS
from dippm.graph.model_graph import GRAPH_VERSION
from dippm.models.hybrid import Hybrid
from dippm.models.novelty import TENSOR
from dippm.models.step_memory import StepMemoryModel
from dippm.pretrained.checkpoint import save_checkpoint
from dippm.pretrained.store import WEIGHTS, CheckpointInfo
from training.evaluation.held_out import HeldOut
from training.evaluation.since import errors_since
from training.hybrid.fit.novelty import thinned
from training.hybrid.fit.tree_arrays import tree_arrays
from training.hybrid.judge.latency_intervals import covered, fit_intervals
from training.steps.examples import StepExamples
from training.steps.fit import FITTED, Multipliers, StepSettings
from training.steps.memory import memory_part
from training.steps.report import baselines, by_family, interval_rows, summary
from training.steps.splits import StepFold

COMMAND = (
    "python -m training.steps.train --data <tables> --graphs <raw graphs> "
    "--inference checkpoints/hybrid-gpu/<version> --inference-work <its work folder> "
    "--out checkpoints/hybrid-gpu-train/<version>"
)
STRICTEST = "S2-10"


def publish(
    out: Path,
    *,
    examples: StepExamples,
    inference: CheckpointInfo,
    fitted: tuple[Multipliers, xgboost.Booster],
    settings: StepSettings,
    folds: Mapping[str, Sequence[StepFold]],
    helds: Mapping[str, HeldOut],
    memory: tuple[StepMemoryModel, Sequence[Mapping[str, Any]]],
    since: Path | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint folder and load it back.

    Args:
        out: the folder.
        examples: what was fitted.
        inference: the checkpoint whose trees, terms, host and power it starts from.
        fitted: on all rows.
        settings: of the fit.
        folds: by split.
        helds: held-out predictions by split.
        memory: model, and lines of the card.
        since: folder of an earlier version, whose errors the card shows beside.
        changes: what is new, for the card.
    """
    found, booster = fitted
    every = interval_rows(examples, list(helds.values()))
    given = inference.config
    law = given["law"]
    config = {
        "kind": "hybrid",
        "graph_version": GRAPH_VERSION,
        "feature_version": Hybrid.feature_version,
        "conditions": {"phase": ["train"]},
        "law": {
            **{name: law[name] for name in ("tree_depth", "tree_reach", "range", "usual")},
            "step_depth": settings.trees.depth,
            "step_reach": settings.trees.reach,
            "multipliers": _by_part(found),
            "tables": _tables(law["tables"], found, examples),
        },
        "step": {"launch_share": float(np.exp(found.log_launch))},
        "host": given["host"],
        "memory": memory_part(memory[0]),
        "power": given["power"],
        "intervals": {"latency_ms": asdict(fit_intervals(every))},
        "seen": {**_seen(examples), "often": given["seen"]["often"]},
        "training": asdict(settings),
        "splits": {name: _hash(examples, of_split) for name, of_split in folds.items()},
        "inference": {
            "checkpoint": f"{inference.name} {inference.version}",
            "sha256": given["sha256"],
        },
        "card": {**_card(examples, inference), "changes": changes},
    }
    headlines = [*summary(examples, list(helds.values())), *map(dict, memory[1])]
    metrics = {
        "summary": headlines,
        **(errors_since(since, headlines) if since else {}),
        "predictors on the same rows and folds, RTX-3090 amp nchw, percent": baselines(
            examples, folds, helds
        ),
        "step time by family held out, RTX-3090 amp nchw, percent": by_family(
            examples, helds[STRICTEST]
        ),
        "intervals of 90 %, each fold by a law that was fitted without it": covered(every),
        "rows by source": _counts(examples),
    }
    save_checkpoint(out, _tensors(inference, booster, examples), config, metrics)


def _tensors(
    inference: CheckpointInfo, booster: xgboost.Booster, examples: StepExamples
) -> dict[str, Tensor]:
    """Return the trees of inference, those of training steps, and the steps that were measured."""
    arrays = {
        name: array
        for name, array in load_file(inference.path / WEIGHTS).items()
        if name.startswith("trees.")
    }
    arrays |= {f"steps.{name}": array for name, array in tree_arrays(booster).items()}
    arrays["steps.classes"] = np.zeros(N_KINDS, dtype=np.float32)
    by_class = examples.class_roofline_ms()
    shares = by_class / np.maximum(by_class.sum(axis=1, keepdims=True), 1e-12)
    arrays[TENSOR] = thinned(shares)
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}


def _by_part(found: Multipliers) -> dict[str, dict[str, float]]:
    return {
        part: {
            name: round(float(value), 5) for name, value in zip(KERNEL_CLASSES, row, strict=True)
        }
        for part, row in zip(FITTED, found.log_slowdown, strict=True)
    }


def _tables(
    tables: Sequence[Mapping[str, Any]], found: Multipliers, examples: StepExamples
) -> list[dict[str, Any]]:
    """Return the terms of inference, with the offset of a GPU's training steps by the wall."""
    offsets = {
        (row.device.name, row.mode): found.offsets[row.table]
        for row in (step.row for step in examples.rows)
        if row.timer == "wall"
    }
    lines = []
    for table in tables:
        offset = offsets.get((table["device"], table["mode"]), 0.0)
        terms = {name: round(term + offset, 5) for name, term in table["terms"].items()}
        lines.append({**table, "terms": terms})
    return lines


def _seen(examples: StepExamples) -> dict[str, Any]:
    rows = [step.row for step in examples.rows]
    devices: dict[str, set[str]] = {}
    for row in rows:
        devices.setdefault(row.device.name, set()).add(row.precision)
    kinds = set(examples.kind.tolist())
    return {
        "devices": {name: sorted(found) for name, found in sorted(devices.items())},
        "batch_range": [min(row.batch for row in rows), max(row.batch for row in rows)],
        "kernel_classes": [name for i, name in enumerate(KERNEL_CLASSES) if i in kinds],
    }


def _hash(examples: StepExamples, folds: Sequence[StepFold]) -> str:
    tested = {fold.name: sorted(examples.rows[i].row.row_id for i in fold.test) for fold in folds}
    return hashlib.sha256(json.dumps(tested, sort_keys=True).encode()).hexdigest()


def _counts(examples: StepExamples) -> list[dict[str, Any]]:
    counts = Counter(
        (s.row.source, s.row.device.name, s.row.precision, s.optimizer or "no update")
        for s in examples.rows
    )
    return [
        {"source": source, "gpu": gpu, "precision": precision, "optimizer": update, "rows": n}
        for (source, gpu, precision, update), n in sorted(counts.items())
    ]


def _card(examples: StepExamples, inference: CheckpointInfo) -> dict[str, Any]:
    sources = sorted({step.row.source for step in examples.rows})
    return {
        "summary": "Gray box for training steps: the kernels of forward, backward and update, "
        f"roofline time × the efficiency of inference ({inference.name} {inference.version}) × "
        "what public measurements of training steps add.",
        "use": "Time, memory, power and energy of a training step from a model graph, "
        'phase="train".',
        "limits": [
            "Measured were vision models on an RTX 3090 under autocast, with SGD and one batch "
            "each, near the largest that fits; torchvision at batch 12 on six older GPUs, without "
            "an update; ResNet-50 and BERT-base on slices of an A100-80GB. On every other GPU a "
            "training step is extrapolated from its inference.",
            "The software was PyTorch 1.x, eager. Compiled training steps are refused.",
            "No table says how long Adam or AdamW take: their passes over memory are counted, and "
            "run as those of SGD do. MIGPerf did not record its optimiser: AdamW is taken for "
            "BERT, SGD for ResNet-50.",
            "Checkpointing was never measured. Every numbered block runs forward once more, as "
            "fast as the first time.",
            "The loss is the cross-entropy of a result with two axes, else its sum. No gradient is "
            "scaled, clipped, accumulated or exchanged between GPUs; no data is loaded.",
            "A graph is that of a model in evaluation mode: dropout and drop path, and what they "
            "save for the gradients, are not in it.",
            "Power and energy follow the law of inference: the power of no training step taught.",
            "Memory is what nvidia-smi shows, in the steady state: parameters, gradients, states "
            "of the optimiser, what autograd saves times one number, context. The number and its "
            "errors come from two models on one GPU.",
            "Errors of S1 and S2 start from fits of inference that did not see the architecture "
            "either. S3a leaves the training steps of a GPU out, not its inference; in it, a "
            "benchmark's machine keeps the launch time that its inference shows.",
            "Errors know the terms of the table that a row belongs to. A prediction takes those of "
            "the newest table of inference of the GPU.",
            "The size of the trees was chosen while looking at held-out errors of two folds of S1 "
            "and two of S2, on half of the rows.",
        ],
        "never_measured": [
            "Training steps on GPUs other than those listed under rows by source.",
            "Language models other than BERT-base; recurrent and 3-D networks.",
            "bf16; compiled steps; several GPUs.",
        ],
        "data": [f"{name} (see dataset/README.md for its origin)" for name in sources],
        "command": COMMAND,
    }
