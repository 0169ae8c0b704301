"""Fits the memory of training steps: MIGPerf's on slices of an A100, and those of our own sets.

One number is fitted, what is reserved over what is saved for the gradients; the context is that of
inference, while it is fitted that of MIGPerf's own installation, or the one that a set of ours
measured. The errors that the card states are of a model that was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from dippm.estimate.models.training_memory import StepMemoryModel, StepUsage, TrainingFootprint
from training.hybrid.fit.memory import MOSTLY_RESERVED, fit_contexts, log_spread, relative_errors
from training.hybrid.rows.collected_rows import CollectedSet, slice_of
from training.hybrid.rows.memory_samples import memory_samples
from training.hybrid.rows.sources import named_migperf, steady
from training.steps.rows import COLLECTED_UPDATE, family_of_step, optimizer_of

Floats = NDArray[np.float64]
LEAST_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class StepMemorySample:
    """One measured device memory.

    Attributes:
        model: key of its graph.
        family: what is left out together.
        sm_count: multiprocessors of the slice.
        usage: memory of a step.
        memory_mb: label.
        gpu, data: GPU, and what was measured, for people.
        context_mb: measured context in MiB; None for that of MIGPerf's installation.
        compute_capability: of the GPU, where it decides the workspace of products.
    """

    model: str
    family: str
    sm_count: int
    usage: StepUsage
    memory_mb: float
    gpu: str
    data: str
    context_mb: float | None = None
    compute_capability: float | None = None

    @property
    def place(self) -> MemoryGpu:
        """Return the GPU or slice as the model of memory sees it."""
        return MemoryGpu(self.sm_count, self.compute_capability)


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
                family_of_step(model),
                slices[row["mig_profile"]],
                footprints[model].usage(int(row["batch"])),
                float(row["memory_mb"]),
                row["gpu"],
                f"migperf training steps of {row['family']}, MIG slices, fp32",
            )
        )
    return found


def collected_step_memory(found: CollectedSet, graphs: GraphStore) -> Iterator[StepMemorySample]:
    """Yield a sample for each training step of a set of our own whose two parts are known.

    The context of a collected row was read after the library of convolutions was loaded.
    """
    for record in found.records:
        device = find(record["device"])
        mig = slice_of(record, device)
        sm_count = mig.sm_count if mig else device.sm_count
        reserved_mb, context_mb = record["memory_reserved_mb"], record["memory_context_mb"]
        if record["kind"] != "model" or not reserved_mb or not context_mb or sm_count is None:
            continue
        footprint = TrainingFootprint.of(
            graphs[record["model"]],
            record["precision"],
            COLLECTED_UPDATE,
            channels_last=bool(record["channels_last"]),
        )
        yield StepMemorySample(
            record["model"],
            family_of_step(record["model"]),
            sm_count,
            footprint.usage(int(record["batch"])),
            float(reserved_mb + context_mb),
            device.name,
            f"{found.source}, training steps",
            float(context_mb),
            device.compute_capability,
        )


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
    errors, reserved = np.zeros(len(samples)), dict[int, float]()
    for family in sorted({sample.family for sample in samples}):
        mine = [i for i, sample in enumerate(samples) if sample.family == family]
        rest = _fit([sample for sample in samples if sample.family != family], own)
        errors[mine] = _errors(rest, [samples[i] for i in mine])
        reserved |= {
            i: error for i in mine if (error := _reserved_error(rest, samples[i])) is not None
        }
    lines = []
    for gpu, data in sorted({(sample.gpu, sample.data) for sample in samples}):
        of_line = errors[[(sample.gpu, sample.data) == (gpu, data) for sample in samples]]
        found = relative_errors(of_line)
        lines.append(
            {
                "gpu": gpu,
                "target": "memory_mb",
                "data": data,
                "split": "model held out",
                "n": found["n"],
                "median_ape": round(100 * found["median_ape"], 2),
                "mape": round(100 * found["mape"], 2),
                "log_bias": round(float(np.log1p(of_line).mean()), 3),
                "question": "memory of a training step of a model never seen",
            }
        )
    fitted = replace(_fit(samples, own), context=context)
    part = np.array(list(reserved.values()))
    spread = part if context.software is not None and len(part) else np.log1p(errors)
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
    predicted = [
        model.memory_mb(sample.usage, sample.place, sample.context_mb) for sample in samples
    ]
    measured = np.array([sample.memory_mb for sample in samples])
    return np.asarray(np.array(predicted) / measured - 1)


def _reserved_error(model: StepMemoryModel, sample: StepMemorySample) -> float | None:
    """Return the log error of the reserved part; None where it is not most of the memory."""
    convolves, asked = sample.usage.convolves, sample.context_mb
    context = model.context.context_of(sample.place, convolves=convolves, asked=asked)
    measured_mb = sample.memory_mb - context.context_mb
    reserved_mb = model.reserved_mb(sample.usage, sample.place)
    if measured_mb <= 0 or reserved_mb < MOSTLY_RESERVED * sample.memory_mb:
        return None
    return float(np.log(reserved_mb / measured_mb))
