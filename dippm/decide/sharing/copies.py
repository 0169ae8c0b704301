"""Prediction of one of several copies of a model that share a place under MPS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dippm.decide.sharing.load import load_of
from dippm.decide.sharing.processes import PlacedProcess, answer_of, latency_among_neighbours
from dippm.decide.sharing.ways import check_mps
from dippm.devices import smallest_profile, taken_fraction
from dippm.estimate.models.neighbour_law import fitted
from dippm.estimate.models.targets import Interval
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph


def predict_among_copies(
    loaded: LoadedPredictor, graph: ModelGraph, prediction: Prediction, copies: int
) -> Prediction:
    """Return the prediction of a pass among copies of its model.

    Latency and energy are those of one copy, memory and power those of all. The interval is that of
    measured sets; a warning says so if such copies were not measured.

    Args:
        loaded: the predictor.
        graph: the model.
        prediction: prediction of one process alone; returned unchanged if it has no latency.
        copies: total number of processes.

    Raises:
        ConditionsError: if the checkpoint predicts only the whole, or the GPU has no MPS.
    """
    if copies == 1 or prediction.latency_ms is None:
        return prediction
    c = prediction.conditions
    check_mps(c.device, copies)
    alone = loaded.predict_at(graph, c, name=prediction.provenance.source)
    load, whole = load_of(loaded, graph, c, alone), alone
    if c.mig is not None:
        whole = loaded.predict_at(graph, c.replace(mig=None), name=prediction.provenance.source)
    of_board = taken_fraction(c.mig, c.device) if c.mig else 1.0
    process = PlacedProcess(alone, alone, "", of_board / copies, whole, load)
    shared = answer_of(c.device, c.mig, "mps", [process] * copies, limited=False)
    one, law = shared.processes[0], fitted()
    _, latency, _ = latency_among_neighbours(
        process, law.together([load] * copies, "mps")[0], law, bounds=False
    )
    values: dict[str, Any] = {
        "latency_ms": one.latency_ms,
        "memory_mb": _times(prediction.memory_mb, copies),
    }
    if prediction.energy_j is not None:
        values |= {"energy_j": one.energy_j, "power_w": shared.power_w}
    intervals = {
        target: _scale(interval, values[target] / getattr(prediction, target))
        for target, interval in prediction.intervals.items()
        if values.get(target) is not None
    }
    bound_mb = _times(prediction.memory_bound_mb, copies)
    untested = [f"{shared.why_bounds}: how wide the interval is was not tested"]
    return replace(
        prediction,
        **values,
        memory_bound_mb=bound_mb,
        memory_parts=None,
        mig=None if bound_mb is None else smallest_profile(bound_mb, c.device),
        intervals={**intervals, "latency_ms": latency},
        absent={
            **prediction.absent,
            "memory_parts": "the memory is that of several processes",
            "mig": f"no slice of {c.device.name} holds {copies} copies at 99 %",
        },
        warnings=(
            *(w for w in prediction.warnings if "run out of memory" not in w),
            *untested * bool(shared.why_bounds),
        ),
        operators=(),
    )


def _times(value: float | None, copies: int) -> float | None:
    return None if value is None else copies * value


def _scale(interval: Interval, factor: float) -> Interval:
    return Interval(factor * interval.low, factor * interval.high, interval.coverage)
