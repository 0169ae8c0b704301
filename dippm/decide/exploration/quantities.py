"""Quantities that every design has: those of its prediction and of its graph.

To add one: a row in `QUANTITIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dippm.estimate.prediction import Prediction
from dippm.model.graph import ModelGraph

Goal = Literal["min", "max"]
MEMORY = "memory_mb"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every design has unless its prediction gives a reason why it is absent.

    Attributes:
        label: label for people, with the unit.
        goal: default goal.
        target: target of the prediction whose reason holds if the number is absent.
        of: function from a prediction and its graph, at the batch of the conversion, to the number.
    """

    label: str
    goal: Goal
    target: str
    of: Callable[[Prediction, ModelGraph], float | None]


def _high(target: str) -> Callable[[Prediction, ModelGraph], float | None]:
    def of(prediction: Prediction, _: ModelGraph) -> float | None:
        interval = prediction.intervals.get(target)
        return interval.high if interval else None

    return of


def _value(name: str) -> Callable[[Prediction, ModelGraph], float | None]:
    def of(prediction: Prediction, _: ModelGraph) -> float | None:
        found = prediction.estimate(name)
        return found.value if found else None

    return of


def _gmacs(_: Prediction, graph: ModelGraph) -> float:
    if graph.batch_is_symbolic:
        return graph.at_batch(1).macs / 1e9
    return graph.macs / graph.batch / 1e9


QUANTITIES: dict[str, Quantity] = {
    "latency_ms": Quantity("latency, ms", "min", "latency_ms", lambda p, _: p.latency_ms),
    "latency_ms_high": Quantity(
        "latency, upper end of its interval, ms", "min", "latency_ms", _high("latency_ms")
    ),
    "samples_per_s": Quantity("samples per second", "max", "latency_ms", _value("samples_per_s")),
    "memory_mb": Quantity("memory, MB", "min", "memory_mb", lambda p, _: p.memory_mb),
    "memory_bound_mb": Quantity(
        "memory at 99 %, MB", "min", "memory_mb", lambda p, _: p.memory_bound_mb
    ),
    "energy_j": Quantity("energy of a batch, J", "min", "energy_j", lambda p, _: p.energy_j),
    "energy_j_per_sample": Quantity(
        "energy of a sample, J", "min", "energy_j", _value("energy_per_sample_j")
    ),
    "power_w": Quantity("power, W", "min", "power_w", lambda p, _: p.power_w),
    "weights_mb": Quantity("weights, MB", "min", "", lambda _, g: g.param_bytes / 2**20),
    "gmacs": Quantity("GMACs of a sample", "min", "", _gmacs),
}
ALIASES = {
    "latency": "latency_ms",
    "throughput": "samples_per_s",
    "memory": "memory_mb",
    "energy": "energy_j",
    "power": "power_w",
}
SHOWN = ("latency_ms", "samples_per_s", "memory_mb", "memory_bound_mb", "energy_j", "power_w")
"""Quantities of every design, requested or not."""


def canonical_name(name: str) -> str:
    """Return the name of a quantity, resolving aliases."""
    folded = name.strip().casefold()
    return ALIASES.get(folded, folded if folded in QUANTITIES else name.strip())


def why_absent(name: str, prediction: Prediction) -> str:
    """Return why a prediction lacks a quantity."""
    target = QUANTITIES[name].target
    return f"{name} is absent: {prediction.absent.get(target, 'no number was predicted')}"
