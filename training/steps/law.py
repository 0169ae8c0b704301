"""What was fitted to training steps → the law of a checkpoint: configuration and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost
from safetensors.numpy import load_file
from torch import Tensor

from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import IntervalLaw
from dippm.estimate.models.novelty import TENSOR
from dippm.estimate.models.phases import HOST_TERMS
from dippm.estimate.models.training_memory import StepMemoryModel
from dippm.estimate.pretrained.store import WEIGHTS
from dippm.model.graph.model_graph import GRAPH_VERSION
from training.hybrid.fit.novelty import thinned
from training.hybrid.fit.tree_arrays import tree_arrays
from training.steps.examples import StepExamples
from training.steps.fit import FITTED, Multipliers, StepSettings
from training.steps.memory import memory_part

OF_INFERENCE = (
    "tree_depth", "tree_reach", "range", "heads", "effects", "default_effects", "effect_spread",
    "laboratories", "kernel_timer",
)  # fmt: skip
"""What the law of a step takes of the law of inference as it is."""


def step_configuration(
    inference: Mapping[str, Any],
    found: Multipliers,
    settings: StepSettings,
    examples: StepExamples,
    memory: StepMemoryModel,
    intervals: IntervalLaw,
) -> dict[str, Any]:
    """Return what a predictor of training steps reads of `config.json`.

    Args:
        inference: configuration of the checkpoint whose trees, effects, host and power it has.
        found: terms found by Gauss-Newton.
        settings: settings of the fit.
        examples: examples that were fitted.
        memory: model of the memory of training steps.
        intervals: law of the intervals of the latency.
    """
    law = inference["law"]
    return {
        "kind": "hybrid",
        "graph_version": GRAPH_VERSION,
        "feature_version": Hybrid.feature_version,
        "conditions": {"phase": ["train"]},
        "law": {
            **{name: law[name] for name in OF_INFERENCE},
            "step_depth": settings.trees.depth,
            "step_reach": settings.trees.reach,
            "forward_as_inference": True,
            "multipliers": _by_part(found),
        },
        "step": {
            "launches": dict(
                zip(HOST_TERMS, np.exp(found.log_launch).round(4).tolist(), strict=True)
            )
        },
        "host": inference["host"],
        "memory": memory_part(memory),
        "power": inference["power"],
        "intervals": {"latency_ms": asdict(intervals)},
        "seen": {**_seen(examples), "often": inference["seen"]["often"]},
    }


def step_tensors(
    inference: Path, booster: xgboost.Booster, examples: StepExamples
) -> dict[str, Tensor]:
    """Return the trees of inference, those of training steps, and the steps that were measured.

    Args:
        inference: folder of the checkpoint of inference.
        booster: the trees of training steps.
        examples: examples that were fitted.
    """
    arrays = {
        name: array
        for name, array in load_file(inference / WEIGHTS).items()
        if name.startswith("trees.")
    }
    arrays |= {f"steps.{name}": array for name, array in tree_arrays(booster).items()}
    arrays["steps.classes"] = np.zeros(N_KINDS, dtype=np.float32)
    steps = np.flatnonzero([row.node is None for row in examples.rows])
    by_class = examples.class_roofline_ms()[steps]
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


def _seen(examples: StepExamples) -> dict[str, Any]:
    devices: dict[str, set[str]] = {}
    for row in examples.rows:
        devices.setdefault(row.device.name, set()).add(row.precision)
    kinds = set(examples.kind.tolist())
    batches = [row.batch for row in examples.rows]
    return {
        "devices": {name: sorted(found) for name, found in sorted(devices.items())},
        "batch_range": [min(batches), max(batches)],
        "kernel_classes": [name for i, name in enumerate(KERNEL_CLASSES) if i in kinds],
    }
