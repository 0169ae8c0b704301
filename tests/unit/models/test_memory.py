"""Memory in two parts: what the allocator takes, and the context of the installation."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from dippm.conditions import SOFTWARE_CLASSES, Conditions, context_of
from dippm.devices import find
from dippm.errors import CheckpointError, ConditionsError
from dippm.models.checkpoint_schemas import HybridSchema, check
from dippm.models.footprint import MemoryFootprint
from dippm.models.hybrid import Z90, Z99, Hybrid
from dippm.models.memory import MIB, MemoryModel, reserved_mb
from dippm.models.training_memory import AutogradFootprint, TrainingMemory
from tests.unit.graph.sketch import Sketch
from tests.unit.models.test_hybrid import conditions, perceptron, predictor

OLD = {
    "context_mb": 1000.0,
    "context_mb_per_sm": 4.0,
    "convolution_mb": 200.0,
    "log_error": 0.07,
}
NEW = {
    **OLD,
    "software": {"cuda-10": 600.0, "cuda-11": 1000.0, "lazy": 50.0},
    "default": "cuda-11",
    "class_sd_mb": 120.0,
    "unknown_sd_mb": 320.0,
}


def hybrid(memory: dict) -> Hybrid:
    made = predictor()
    return Hybrid.from_checkpoint(
        {name: array for name, array in TENSORS.items()}, {**made.config, "memory": memory}
    )


def images(width: int = 8, depth: int = 6) -> Sketch:
    s = Sketch()
    x = s.input(BATCH, 3, 64, 64)
    for channels in [3] + [width] * depth:
        weight = s.weight(width, channels, 3, 3)
        x = s.call("conv2d", [x, weight], BATCH, width, 64, 64, padding=(1, 1))
        x = s.call("relu", [x], BATCH, width, 64, 64)
    return s


BATCH = 2
