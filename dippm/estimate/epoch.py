"""`Epoch`: the cost of training on a data set, from the prediction of one training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dippm.base.number_format import show
from dippm.base.written import is_finite
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.targets import Interval

JOULES_PER_KWH = 3.6e6


class Step(Protocol):
    """A prediction, see `dippm.estimate.prediction.Prediction`."""

    @property
    def conditions(self) -> Conditions:
        """Conditions of the step."""

    @property
    def latency_ms(self) -> float | None:
        """Time of the step."""

    @property
    def energy_j(self) -> float | None:
        """Energy of the step."""

    @property
    def intervals(self) -> Mapping[str, Interval]:
        """Range by target."""

    @property
    def absent(self) -> Mapping[str, str]:
        """Reason by target."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Training on a data set, on one GPU that is never kept waiting for data.

    Attributes:
        samples: number of samples in the data set.
        epochs: number of passes over it.
        steps: number of steps in all epochs; the last one of an epoch counts as a whole one even if
            it is smaller.
        time_s: time of all epochs.
        time_interval_s: its interval, relatively as wide as that of the step.
        energy_kwh: energy of the board; None, with the reason in `absent`, if that of a step is not
            predicted.
        price: price of the time, in the currency of the price per hour; None if that is not given.
        absent: reasons by quantity.
    """

    samples: int
    epochs: int
    steps: int
    time_s: float
    time_interval_s: Interval
    energy_kwh: float | None
    price: float | None
    absent: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        interval = self.time_interval_s
        return {
            "samples": self.samples,
            "epochs": self.epochs,
            "steps": self.steps,
            "time_s": self.time_s,
            "time_interval_s": {
                "low": interval.low,
                "high": interval.high,
                "coverage": interval.coverage,
            },
            "energy_kwh": self.energy_kwh,
            "price": self.price,
            "absent": self.absent,
        }

    def __str__(self) -> str:
        what = "epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        interval = self.time_interval_s
        parts = [
            f"{show(self.time_s / 60)} min ({show(interval.low / 60)} – {show(interval.high / 60)})"
        ]
        if self.energy_kwh is not None:
            parts.append(f"{show(self.energy_kwh)} kWh")
        if self.price is not None:
            parts.append(f"price {show(self.price)}")
        return f"{what} of {self.samples:,} samples, {self.steps:,} steps: {', '.join(parts)}"


def epoch_of(
    prediction: Step, samples: int, *, epochs: int = 1, price_per_hour: float | None = None
) -> Epoch:
    """Return what going over a data set costs.

    Args:
        prediction: of a training step.
        samples: of the data set.
        epochs: how often it is gone over.
        price_per_hour: of the GPU.

    Raises:
        ConditionsError: if the prediction is not of a training step or has no latency, or a number
            is not above 0.
    """
    c = prediction.conditions
    if c.phase != "train":
        raise ConditionsError(
            "an epoch consists of training steps, and this is a prediction of inference",
            "Predict with phase=train.",
        )
    for name, value in (("data set", samples), ("number of epochs", epochs)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConditionsError(f"the {name} is {value!r}", "Give a whole number, at least 1.")
    if price_per_hour is not None and not (is_finite(price_per_hour) and price_per_hour >= 0):
        raise ConditionsError(f"the price is {price_per_hour!r}", "Give the price of an hour.")
    latency = prediction.latency_ms
    if latency is None:
        reason = prediction.absent["latency_ms"]
        raise ConditionsError(
            f"the time of a step is not predicted: {reason}",
            "Use a checkpoint and conditions with a predicted latency.",
        )
    steps = epochs * -(-samples // c.batch)
    step, energy_j = prediction.intervals["latency_ms"], prediction.energy_j
    time_s = steps * latency / 1e3
    return Epoch(
        samples=samples,
        epochs=epochs,
        steps=steps,
        time_s=time_s,
        time_interval_s=Interval(steps * step.low / 1e3, steps * step.high / 1e3, step.coverage),
        energy_kwh=None if energy_j is None else steps * energy_j / JOULES_PER_KWH,
        price=None if price_per_hour is None else time_s / 3600 * price_per_hour,
        absent={} if energy_j is not None else {"energy_kwh": prediction.absent["energy_j"]},
    )
