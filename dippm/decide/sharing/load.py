"""`Load` of a process for the neighbour law, from predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dippm.decide.explanation.explanation import parts_of
from dippm.devices import Device, MigProfile
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.neighbour_law import Load
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph

PARTS = 7
"""Assumed number of equal parts of a GPU without slices."""


def load_of(
    loaded: LoadedPredictor, graph: ModelGraph, conditions: Conditions, alone: Prediction
) -> Load:
    """Return the load of a process.

    Args:
        loaded: the predictor.
        graph: the model.
        conditions: conditions of the shared place: a GPU, or a slice of it.
        alone: prediction of the process alone, within its limits, with operators.

    Raises:
        ConditionsError: if the checkpoint predicts only the whole, or no kernel runs.
    """
    latency_ms = alone.latency_ms
    if latency_ms is None or not alone.operators:
        why = alone.absent.get("latency_ms") or (
            f"{alone.provenance.checkpoint} predicts the whole, not its kernels"
        )
        raise ConditionsError(
            f"what neighbours do to {alone.provenance.source} is not known: {why}",
            "Ask with a checkpoint of kind hybrid; `dippm models` lists them.",
        )
    part = smallest_part(conditions.device, conditions.mig)
    filled = loaded.predict_at(graph, conditions.replace(mig=part), name="part")
    in_part = partial(_times_in, whole=conditions, part=part)
    copies = [
        found.time_ms for found in parts_of(alone, latency_ms, {}) if found.name == "input copy"
    ]
    return Load(
        alone_ms=latency_ms,
        filled_ms=_kernel_ms(filled, in_part),
        kernel_ms=_kernel_ms(alone, lambda bound: 1.0),
        copy_ms=sum(copies),
        launches=max(1, sum(row.kernels for row in alone.operators)),
    )


def smallest_part(device: Device, place: MigProfile | None) -> MigProfile:
    """Return the unit of a GPU that kernels of one process fill: its smallest slice.

    A GPU without slices is assumed to be divided like those with slices.
    """
    single = [p for p in device.mig_profiles if p.compute_slices == p.memory_slices == 1]
    if single:
        return single[0]
    multiprocessors = max(1, round(device.known("sm_count") / PARTS))
    return MigProfile("a part", device.memory_mb // device.memory_slices, multiprocessors, 1, 1)


def _times_in(bound: str, *, whole: Conditions, part: MigProfile) -> float:
    """Return how many such parts a place has of the resource that bounds a kernel."""
    device, mig = whole.device, whole.mig
    if bound == "memory":
        return (mig.memory_slices if mig else device.memory_slices) / part.memory_slices
    return (mig.sm_count if mig else device.known("sm_count")) / part.sm_count


def _kernel_ms(prediction: Prediction, parts: Callable[[str], float]) -> float:
    """Return the time of all kernels, each divided by the number of parts of its bound."""
    rows = (row for row in prediction.operators if row.op != "host")
    return sum(row.time_ms / parts(row.bound) for row in rows)
