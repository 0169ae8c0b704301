"""`cost_of`: price, energy and carbon of inference, or of a training run, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.base.written import is_finite
from dippm.errors import ConditionsError
from dippm.estimate.carbon import Region, check_pue
from dippm.estimate.epoch import JOULES_PER_KWH
from dippm.estimate.models.targets import Estimate
from dippm.estimate.prediction import Prediction

MILLION = 1_000_000
MS_PER_HOUR = 3.6e6
MOST_IDLE_HOURS = 1e6
UNITS = {"gpu_hours": "h", "energy_kwh": "kWh", "price": "", "carbon_g": "g CO2"}


@dataclass(frozen=True, slots=True)
class RunningCost(Answer):
    """Cost of running a model over samples on one GPU; `cost_of` makes it.

    Attributes:
        phase: "inference" or "train".
        samples: samples per epoch.
        epochs: number of epochs.
        steps: passes, or training steps; the last of an epoch counts as a whole one.
        idle_hours: hours without work, in addition to `gpu_hours`.
        gpu_hours: hours of work; its interval is as wide as that of the latency.
        energy_kwh: energy of the board, busy and idle, times `pue` for the data centre.
        price: price of all hours, in the currency of the hourly price.
        carbon_g: grams of CO2 of `energy_kwh`.
        pue: power usage effectiveness.
        region: region of the electricity; None if not given.
        absent: reason for each quantity that is None.
        prediction: prediction of the pass or step, with its place and conditions.
        currency: currency of the price; "" if not given.
    """

    phase: str
    samples: int
    epochs: int
    steps: int
    idle_hours: float
    gpu_hours: Estimate | None
    energy_kwh: Estimate | None
    price: Estimate | None
    carbon_g: Estimate | None
    pue: float
    region: Region | None
    absent: Mapping[str, str]
    prediction: Prediction = field(repr=False)
    currency: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per quantity, with its unit and interval."""
        units = UNITS | {"price": self.currency}
        found = ((name, getattr(self, name)) for name in UNITS)
        return [
            {
                "quantity": name,
                "unit": units[name] or None,
                "value": one and one.value,
                "low": one and one.interval.low,
                "high": one and one.interval.high,
                "coverage": one and one.interval.coverage,
                "absent": self.absent.get(name),
            }
            for name, one in found
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        found = {name: getattr(self, name) for name in UNITS}
        return {
            "phase": self.phase,
            "samples": self.samples,
            "epochs": self.epochs,
            "steps": self.steps,
            "idle_hours": self.idle_hours,
            **{name: one and one.value for name, one in found.items()},
            "intervals": {name: asdict(one.interval) for name, one in found.items() if one},
            "pue": self.pue,
            "region": self.region and self.region.name,
            "g_per_kwh": self.region and self.region.g_per_kwh,
            "absent": dict(self.absent),
        }

    def __str__(self) -> str:
        what = "inference of" if self.phase == "inference" else "training on"
        times = f", {self.epochs:,} times" if self.epochs > 1 else ""
        lines = [f" {what} {self.samples:,} samples{times}: {self.steps:,} steps"]
        for name, unit in (UNITS | {"price": printable(self.currency)}).items():
            one: Estimate | None = getattr(self, name)
            label = name.partition("_")[0].replace("gpu", "GPU")
            if one is None:
                lines.append(f" {label:<13}not available: {printable(self.absent[name])}")
                continue
            ends = between(one.interval.low, one.interval.high)
            lines.append(f" {label:<13}{f'{show(one.value)} {unit}'.strip():<15}{ends}")
        basis = [f"PUE {self.pue:g}"]
        if self.region is not None:
            name = printable(self.region.name)
            basis.append(f"{name} {self.region.g_per_kwh:g} g/kWh".strip())
        if self.idle_hours:
            basis.append(f"{self.idle_hours:g} h idle")
        return "\n".join([*lines, " " + " · ".join(basis)])


def cost_of(
    prediction: Prediction,
    *,
    samples: int = MILLION,
    epochs: int = 1,
    price_per_hour: float | None = None,
    region: Region | None = None,
    pue: float | None = None,
    idle_hours: float = 0.0,
    currency: str = "",
) -> RunningCost:
    """Return the cost of processing samples: by default inference of a million.

    Steps run back to back, each with the predicted latency; time in which the GPU waits for data
    or requests belongs into `idle_hours`. Energy is that of the board; host and cooling count only
    as far as `pue` includes them.

    Args:
        prediction: prediction of an inference pass or of a training step.
        samples: samples of the data set, or of the requests.
        epochs: number of passes over the samples.
        price_per_hour: hourly price of the GPU, or of the slice.
        region: region of the electricity, see `dippm.estimate.carbon`.
        pue: power usage effectiveness; None takes that of the region, 1 without one.
        idle_hours: hours that the GPU is kept without work.
        currency: currency of the price, for display.

    Raises:
        ConditionsError: if a number is out of range.
        CarbonError: if the power usage effectiveness is out of range.
    """
    c = prediction.conditions
    for name, value in (("samples", samples), ("epochs", epochs)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**15:
            raise ConditionsError(f"{name} is {value!r}", "Give a whole number, at least 1.")
    if not is_finite(idle_hours) or not 0 <= idle_hours <= MOST_IDLE_HOURS:
        raise ConditionsError(
            f"idle_hours is {idle_hours!r}", f"Give hours, 0 to {MOST_IDLE_HOURS:,.0f}."
        )
    if price_per_hour is not None and not (is_finite(price_per_hour) and price_per_hour >= 0):
        raise ConditionsError(f"the price is {price_per_hour!r}", "Give the price of an hour.")
    factor = check_pue(pue) if pue is not None else region.pue if region else 1.0
    steps = epochs * -(-samples // c.batch)
    absent: dict[str, str] = {}
    latency, energy = prediction.estimate("latency_ms"), prediction.estimate("energy_j")
    hours = latency and latency.scaled(steps / MS_PER_HOUR)
    if hours is None:
        absent["gpu_hours"] = absent["price"] = prediction.absent["latency_ms"]
    price = None
    if hours is not None and price_per_hour is not None:
        price = hours.scaled(price_per_hour, price_per_hour * idle_hours)
    elif price_per_hour is None:
        absent["price"] = "no price per hour was given"
    idle_w = c.device.idle_power_w
    if energy is None:
        absent["energy_kwh"] = prediction.absent["energy_j"]
    elif idle_hours and (idle_w is None or c.mig is not None):
        energy = None
        absent["energy_kwh"] = f"the idle power of {c.mig or c.device.name} is not known"
    else:
        energy = energy.scaled(steps / JOULES_PER_KWH)
        energy = energy.scaled(factor, factor * (idle_w or 0.0) / 1e3 * idle_hours)
    carbon = None
    if energy is None:
        absent["carbon_g"] = absent["energy_kwh"]
    elif region is None:
        absent["carbon_g"] = "neither a region nor grams per kWh were given"
    else:
        carbon = energy.scaled(region.g_per_kwh)
    return RunningCost(
        phase=c.phase,
        samples=samples,
        epochs=epochs,
        steps=steps,
        idle_hours=float(idle_hours),
        gpu_hours=hours,
        energy_kwh=energy,
        price=price,
        carbon_g=carbon,
        pue=factor,
        region=region,
        absent=absent,
        prediction=prediction,
        currency=currency,
    )
