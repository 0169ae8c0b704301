"""`sweep_power`: time and energy of a model at lower power limits of the board."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import exp, hypot, log
from typing import Any, Unpack

from dippm.api import predict
from dippm.base.answer import Answer
from dippm.base.written import whole_number
from dippm.errors import ConditionsError
from dippm.estimate.models.power_limit import Band, fitted
from dippm.estimate.models.targets import Interval
from dippm.estimate.options import Options, question
from dippm.estimate.prediction import Prediction

STEP_W = 25
MOST = 1_000
HINT = "Give limits in W: 250, a list 150,200,250, or a range 100:400, with steps 100:400:50."


@dataclass(frozen=True, slots=True)
class PowerPoint(Answer):
    """A prediction at one power limit.

    Attributes:
        limit_w: power limit of the board in W.
        latency_ms: latency of a batch.
        power_w: mean power during a batch.
        energy_j: energy of a batch.
        intervals: interval by target, for the errors of prediction and law together.
        estimated: whether the law was applied; False at the highest limit.
    """

    limit_w: float
    latency_ms: float
    power_w: float
    energy_j: float
    intervals: dict[str, Interval]
    estimated: bool

    def rows(self) -> list[dict[str, Any]]:
        """Return the point as a single row; intervals as "_low" and "_high"."""
        row: dict[str, Any] = {"limit_w": self.limit_w}
        for name, interval in self.intervals.items():
            row |= {name: getattr(self, name), f"{name}_low": interval.low}
            row[f"{name}_high"] = interval.high
        return [{**row, "estimated": self.estimated}]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PowerSweep(Answer):
    """A model over power limits.

    Attributes:
        prediction: prediction at the default limit of the board.
        points: points in the order of the limits.
        warnings: warnings about the points.
    """

    prediction: Prediction
    points: tuple[PowerPoint, ...]
    warnings: tuple[str, ...]

    @property
    def thriftiest(self) -> PowerPoint:
        """Point with the least energy."""
        return min(self.points, key=lambda point: point.energy_j)

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per limit."""
        return [row for point in self.points for row in point.rows()]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        first = self.prediction.to_dict()
        return {
            "source": first["source"],
            "conditions": first["conditions"],
            "limits": [asdict(point) for point in self.points],
            "least_energy_limit_w": self.thriftiest.limit_w,
            "law": {"gpus": list(fitted().gpus), "bands": [asdict(b) for b in fitted().bands]},
            "warnings": list(self.warnings),
            "provenance": first["provenance"],
            "absent": self.prediction.unverified,
            "verify": first["verify"],
        }


@question(Options)
def sweep_power(
    source: Any,
    framework: str | None = None,
    *,
    limits_w: str | float | Iterable[float],
    **options: Unpack[Options],
) -> PowerSweep:
    """Estimate latency, power and energy at lower power limits of the board.

    The prediction is for the default limit of the board; its change with a lower limit follows an
    empirical law from training runs on other GPUs, see
    `dippm.estimate.models.power_limit`.

    Args:
        source: see `predict`.
        framework: see `predict`.
        limits_w: limits in W; in text form "100:400" has steps of 25 W, "100:400:50" of 50 W.
        **options: see `dippm.Options`.

    Raises:
        ConditionsError: if a limit is above the board's or below the range that the law was fitted
            to, or the power is not predicted (on a slice, or by another kind of checkpoint).
        DippmError: as `predict` does.
    """
    wanted = limits_of(limits_w) if isinstance(limits_w, str) else _several(limits_w)
    prediction = predict(source, framework, **options)
    device = prediction.conditions.device
    if prediction.power_w is None or prediction.latency_ms is None:
        reason = prediction.absent.get("power_w") or prediction.absent.get("latency_ms", "")
        raise ConditionsError(
            f"a power limit needs a predicted power: {reason}",
            "Use a whole GPU and a checkpoint that predicts power (`dippm models`).",
        )
    highest = device.known("power_limit_w")
    lowest = min(band.lowest_share for band in fitted().bands) * highest
    for limit in wanted:
        if not lowest <= limit <= highest:
            raise ConditionsError(
                f"a power limit of {limit:g} W on {device.name}",
                f"Give {lowest:.0f} to {highest:g} W: the board allows no more, and "
                "less was not measured.",
            )
    points = tuple(_points(prediction, wanted))
    return PowerSweep(prediction, points, (*prediction.warnings, *_warnings(prediction, points)))


def limits_of(text: str) -> tuple[float, ...]:
    """Return the limits in W of a text.

    Raises:
        ConditionsError: if it is neither a list nor a range of numbers.
    """
    found: list[float] = []
    for part in filter(None, re.split(r"[,;\s]+", text.strip())):
        try:
            numbers = [whole_number(number) for number in part.split(":")]
        except ValueError:
            raise ConditionsError(f"power limit is {text!r}", HINT) from None
        if len(numbers) == 1:
            found.append(numbers[0])
            continue
        first, last, *rest = numbers
        step = rest[0] if rest else STEP_W
        if len(rest) > 1 or step < 1 or not 0 < first <= last or (last - first) // step > MOST:
            raise ConditionsError(f"power limit is {text!r}", HINT)
        found += [*range(first, last, step), last]
    if not found:
        raise ConditionsError(f"power limit is {text!r}", HINT)
    return tuple(dict.fromkeys(found))


def _points(prediction: Prediction, limits_w: Iterable[float]) -> Iterator[PowerPoint]:
    highest = prediction.conditions.device.known("power_limit_w")
    latency, power = prediction.latency_ms, prediction.power_w
    assert latency is not None
    assert power is not None
    halves = {name: _half(prediction, name) for name in ("latency_ms", "power_w")}
    law = fitted().law
    full = float(law.log_slowdown(highest, power, highest))
    full_power = float(law.log_power_ratio(highest, power))
    for limit in limits_w:
        band = fitted().band(limit / highest)
        assert band is not None
        if limit == highest:
            yield _point(limit, latency, power, halves, Band(1.0, 0.0, 0.0, 0.0, 0))
            continue
        # The prediction is for the highest limit, so the curves are relative to it.
        slow = max(0.0, float(law.log_slowdown(limit, power, highest)) - full)
        less = min(0.0, float(law.log_power_ratio(limit, power)) - full_power)
        ends = [
            float(law.log_slowdown(limit, power * exp(sign * halves["power_w"]), highest))
            for sign in (-1, 1)
        ]
        wider = {**halves, "latency_ms": hypot(halves["latency_ms"], (ends[1] - ends[0]) / 2)}
        yield _point(limit, latency * exp(slow), min(power * exp(less), limit), wider, band)


def _point(
    limit_w: float, latency_ms: float, power_w: float, halves: dict[str, float], band: Band
) -> PowerPoint:
    widths = {
        "latency_ms": hypot(halves["latency_ms"], band.time_log_error),
        "power_w": hypot(halves["power_w"], band.power_log_error),
        "energy_j": hypot(halves["latency_ms"], halves["power_w"], band.energy_log_error),
    }
    energy_j = latency_ms * power_w / 1e3
    values = {"latency_ms": latency_ms, "power_w": power_w, "energy_j": energy_j}
    intervals = {
        name: Interval(value / exp(widths[name]), value * exp(widths[name]), 0.9)
        for name, value in values.items()
    }
    intervals["power_w"] = Interval(
        intervals["power_w"].low, max(power_w, min(intervals["power_w"].high, limit_w)), 0.9
    )
    return PowerPoint(
        float(limit_w), latency_ms, power_w, energy_j, intervals, band.lowest_share < 1
    )


def _half(prediction: Prediction, target: str) -> float:
    value, interval = getattr(prediction, target), prediction.intervals[target]
    return max(log(interval.high / value), log(value / interval.low))


def _warnings(prediction: Prediction, points: Iterable[PowerPoint]) -> Iterator[str]:
    if any(point.estimated for point in points):
        yield (
            "lower power limits are estimated, by a law fitted to training runs on "
            f"{', '.join(fitted().gpus)}"
        )
    coarse = fitted().bands[-1]
    half = fitted().bands[0].lowest_share * prediction.conditions.device.known("power_limit_w")
    if any(point.limit_w < half for point in points):
        factor = exp(coarse.time_log_error)
        yield f"below {half:.0f} W times are rough: 90 % lie within a factor of {factor:.1f}"


def _several(limits_w: float | Iterable[float]) -> tuple[float, ...]:
    return (limits_w,) if isinstance(limits_w, int | float) else tuple(limits_w)
