"""Fits the memory of training steps, on MIGPerf's: ResNet-50 and BERT-base on slices of an A100.

One number is fitted, what is reserved over what is saved for the gradients; the context is that of
inference, while it is fitted that of MIGPerf's own installation. The errors that the card states
are of the model that was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.join.graph_store import GraphStore
from dataset.measured.sources import read
from dippm.devices import find
from dippm.estimate.models.memory import MemoryGpu, MemoryModel
from dippm.estimate.models.step_memory import StepMemoryModel
from dippm.estimate.models.training_memory import StepUsage, TrainingFootprint
from training.hybrid.fit.memory import (
    MOSTLY_RESERVED,
    fit_contexts,
    log_spread,
    relative_errors,
)
from training.hybrid.rows.memory_samples import memory_samples
from training.hybrid.rows.sources import named_migperf
from training.steps.rows import optimizer_of, steady

Floats = NDArray[np.float64]
LEAST_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class StepMemorySample:
    """One measured device memory.

    Attributes:
        model: key of its graph; what shares its family is left out together.
        family: "resnet50", "bert-base".
        sm_count: multiprocessors of the slice.
        usage: memory of a step.
        memory_mb: label.
    """

    model: str
    family: str
    sm_count: int
    usage: StepUsage
    memory_mb: float


def step_memory_samples(data: Path, graphs: GraphStore) -> list[StepMemorySample]:
    """Return the measured rows whose graph is at hand."""
    table = steady(read("migperf", data))
    table = table[(table["phase"] == "train") & table["memory_mb"].notna()]
    table = named_migperf(table.assign(family=table["model"].str.removeprefix("migperf:")))
    footprints: dict[str, TrainingFootprint] = {}
    found = []
    for row in table.to_dict("records"):
        model = row["model"]
        if model not in graphs:
            continue
        if model not in footprints:
            optimizer = optimizer_of(row)
            assert optimizer is not None
            footprints[model] = TrainingFootprint.of(
                graphs[model], "fp32", optimizer, attention="unfused"
            )
        slices = {profile.name: profile.sm_count for profile in find(row["gpu"]).mig_profiles}
        found.append(
            StepMemorySample(
                model,
                row["family"],
                slices[row["mig_profile"]],
                footprints[model].usage(int(row["batch"])),
                float(row["memory_mb"]),
            )
        )
    return found


def installed(context: MemoryModel, data: Path, graphs: GraphStore) -> MemoryModel:
    """Return the context of inference as it is in the installation of MIGPerf."""
    if context.software is None:
        return context
    known = fit_contexts(memory_samples(data, graphs)).installations
    return replace(context, context_mb=known["migperf"])


def fit_step_memory(
    samples: Sequence[StepMemorySample], context: MemoryModel, own: MemoryModel | None = None
) -> tuple[StepMemoryModel, list[dict[str, Any]]]:
    """Return the model fitted on all samples, and lines of the card with its errors.

    Args:
        samples: measured samples.
        context: model of the context of inference.
        own: the same in the measured installation; None if it does not differ.
    """
    own = context if own is None else own
    lines, held = [], []
    reserved: list[Floats] = []
    for family in sorted({sample.family for sample in samples}):
        mine = [sample for sample in samples if sample.family == family]
        rest = _fit([sample for sample in samples if sample.family != family], own)
        error = _errors(rest, mine)
        held.append(error)
        reserved.append(_reserved_errors(rest, mine))
        found = relative_errors(error)
        lines.append(
            {
                "gpu": "A100-80GB",
                "target": "memory_mb",
                "data": f"migperf training steps of {family}, MIG slices, fp32",
                "split": "model held out",
                "n": found["n"],
                "median_ape": round(100 * found["median_ape"], 2),
                "mape": round(100 * found["mape"], 2),
                "log_bias": round(float(np.log1p(error).mean()), 3),
                "question": "memory of a training step of a model never seen",
            }
        )
    fitted = replace(_fit(samples, own), context=context)
    whole = np.log1p(np.concatenate(held))
    part = np.concatenate(reserved)
    spread = part if context.software is not None and len(part) else whole
    return replace(fitted, log_error=log_spread(spread)), lines


def memory_part(model: StepMemoryModel) -> dict[str, float]:
    """Return the part "memory" of a configuration."""
    return {**asdict(model.context), "spread": model.spread, "log_error": model.log_error}


def _fit(samples: Sequence[StepMemorySample], context: MemoryModel) -> StepMemoryModel:
    def residual(p: Floats) -> Floats:
        model = StepMemoryModel(context, LEAST_SPREAD + float(np.exp(p[0])), 0.0)
        return np.log1p(_errors(model, samples))

    found = least_squares(residual, [np.log(0.1)], loss="soft_l1", f_scale=0.05).x
    return StepMemoryModel(context, LEAST_SPREAD + float(np.exp(found[0])), 0.0)


def _errors(model: StepMemoryModel, samples: Sequence[StepMemorySample]) -> Floats:
    predicted = [model.memory_mb(sample.usage, MemoryGpu(sample.sm_count)) for sample in samples]
    measured = np.array([sample.memory_mb for sample in samples])
    return np.asarray(np.array(predicted) / measured - 1)


def _reserved_errors(model: StepMemoryModel, samples: Sequence[StepMemorySample]) -> Floats:
    """Return the log error of the reserved part, where it is most of the memory."""
    found = []
    for sample in samples:
        gpu = MemoryGpu(sample.sm_count)
        context = model.context.context_of(gpu, convolves=sample.usage.convolves)
        measured_mb = sample.memory_mb - context.context_mb
        reserved_mb = model.reserved_mb(sample.usage, gpu)
        if measured_mb > 0 and reserved_mb >= MOSTLY_RESERVED * sample.memory_mb:
            found.append(np.log(reserved_mb / measured_mb))
    return np.array(found)
