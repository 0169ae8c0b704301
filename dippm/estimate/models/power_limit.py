"""Effect of a lower power limit of a board on latency and power: an estimate.

    u = (limit - idle) / (power - idle)          idle = idle_share · highest limit
    time(limit) / time = (1 + (knee / u) ** (sharpness · slope)) ** (1 / sharpness)
    power(limit) / power = (1 + (reach · power / limit) ** bend) ** (-1 / bend)

`power` is the mean power that the work draws without a lower limit. Work that draws less than the
limit is not slowed down; below the knee, time grows as a power of u, the share of the power above
idle that the limit leaves. The parameters in `power_limit.json` were fitted to training runs on
four GPUs (NSDI 2023 traces of Zeus); `python -m training.hybrid.fit.power_limit` writes the file,
with the errors on GPUs that were held out. The second section applies the law to boards without
measurements (`BoardPower`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device, find
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelGraph
from dippm.estimate.models.engine_law import with_eight_bits
from dippm.estimate.models.monotonic_bounds import FORMATS, is_sibling
from dippm.estimate.models.power import PowerModel, work_ms

Floats = NDArray[np.float64]
FILE = "power_limit.json"


@dataclass(frozen=True, slots=True)
class PowerLimitLaw:
    """The two curves above; limits and powers are in W, `highest_w` is the default limit.

    Attributes:
        idle_share: fitted idle power of the board over its highest limit.
        knee: share of the power above idle at which work begins to slow down.
        sharpness: sharpness of the transition at the knee.
        slope: exponent of the slow-down below the knee.
        reach: limit over the highest mean power that it permits.
        bend: sharpness of the transition of the power ratio.
    """

    idle_share: float
    knee: float
    sharpness: float
    slope: float
    reach: float
    bend: float

    def log_slowdown(self, limit_w: Any, power_w: Any, highest_w: Any) -> Floats:
        """Return the logarithm of the time at the limit over the time without one, above 0."""
        idle = self.idle_share * np.asarray(highest_w, np.float64)
        left = np.maximum(limit_w - idle, 1e-3 * highest_w)
        drawn = np.maximum(power_w - idle, 1e-3 * highest_w)
        over = (self.knee * drawn / left) ** (self.sharpness * self.slope)
        return np.asarray(np.log1p(over) / self.sharpness, np.float64)

    def log_power_ratio(self, limit_w: Any, power_w: Any) -> Floats:
        """Return the logarithm of the mean power at the limit over that without one, below 0."""
        over = (self.reach * np.asarray(power_w, np.float64) / limit_w) ** self.bend
        return np.asarray(-np.log1p(over) / self.bend, np.float64)


@dataclass(frozen=True, slots=True)
class Band:
    """Errors of the law on GPUs that it was not fitted to, for limits from a share of the highest.

    Attributes:
        lowest_share: lowest share of the highest limit; the band ends where the next one begins.
        time_log_error: half width of the 90 % interval of the log slow-down.
        power_log_error: half width of the 90 % interval of the log power ratio.
        energy_log_error: half width of the 90 % interval of the log energy ratio.
        n: number of points.
    """

    lowest_share: float
    time_log_error: float
    power_log_error: float
    energy_log_error: float
    n: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """The law with its errors.

    Attributes:
        law: curves with fitted parameters.
        bands: errors by share of the highest limit, highest shares first.
        gpus: names of the GPUs that the law was fitted to.
    """

    law: PowerLimitLaw
    bands: tuple[Band, ...]
    gpus: tuple[str, ...]

    def band(self, share: float) -> Band | None:
        """Return the errors at a share of the highest limit; None below the lowest band."""
        return next((band for band in self.bands if share >= band.lowest_share), None)


@cache
def fitted() -> Fitted:
    """Return the law that is shipped with the package."""
    text = files("dippm.estimate.models").joinpath(FILE).read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return Fitted(
        PowerLimitLaw(**document["law"]),
        tuple(Band(**band) for band in document["bands"]),
        tuple(document["gpus"]),
    )


# Slow-down by the power limit of a board without measurements: an estimate.
#
# A chip needs about the same energy for the same work whatever board carries it. A board that is
# predicted to work at a share f of the speed of a measured sibling would draw f times its power, of
# a board with f times its limit; if its own limit is lower than that, it slows down as boards do
# whose limit is lowered (the law above):
#
#     f = time on the sibling / time here
#     log slow-down = law(limit, f · power) - law(f · limit of the sibling, f · power), 0 or more
#
# Of several siblings, the one with the smallest slow-down is used. Measured GPUs are not changed:
# their measurements include the effect of their limit. For a board that was measured in formats of
# another width only, arithmetic alone is slowed down, because its memory was measured; a kernel
# below its roofline is slowed down in full, up to it.

LEAST = 0.01
"""Log slow-down below which the effect is disregarded."""
WORTH_TELLING = 0.05
"""Log slow-down from which on an answer has a warning."""


@dataclass(frozen=True, slots=True)
class Limited:
    """The effect of a board's power limit on a model.

    Attributes:
        log_slowdown: logarithm of the time at the limit over the time without one, above 0.
        power_w: mean power at the limit while kernels run.
        share: limit over the limit at which this work would not be slowed down.
        sibling: measured GPU that the estimate is based on.
    """

    log_slowdown: float
    power_w: float
    share: float
    sibling: str

    @property
    def log_error(self) -> float:
        """Half width of the 90 % interval of the log slow-down."""
        bands = fitted().bands
        return (fitted().band(self.share) or bands[-1]).time_log_error


class BoardPower:
    """Effect of the power limits of boards that were never measured.

    Args:
        power: power model of measured boards.
        measured: names of the GPUs with enough measurements, by width of the format.
    """

    def __init__(self, power: PowerModel, measured: Mapping[str, Sequence[str]]) -> None:
        self._power, self._measured = power, measured

    def siblings(self, c: Conditions) -> tuple[Conditions, ...]:
        """Return the same conditions on measured siblings; empty if the limit needs no estimate."""
        measured = self._measured.get(FORMATS[c.precision], ())
        device = c.device
        if device.power_limit_w is None or device.calibration or device.name in measured:
            return ()
        near = [found for found in map(find, measured) if is_sibling(device, found)]
        known = [with_eight_bits(found, c.precision) for found in near if found.power_limit_w]
        return tuple(c.replace(device=found, mig=None) for found in known)

    def is_measured(self, device: Device) -> bool:
        """Return whether a board was measured, in a format of any width."""
        return any(device.name in names for names in self._measured.values())

    def limited(
        self,
        c: Conditions,
        batch: int,
        device_ms: float,
        siblings: Sequence[tuple[Device, KernelGraph, float]],
    ) -> Limited | None:
        """Return the effect of the board's limit; None if it does not limit this work.

        Args:
            c: conditions of the prediction.
            batch: number of samples.
            device_ms: time of the kernels without a limit, above 0.
            siblings: measured siblings, each with the kernels of the model and their time in ms.
        """
        law, limit_w = fitted().law, c.device.known("power_limit_w")
        found: list[Limited] = []
        for device, graph, sibling_ms in siblings:
            f = sibling_ms / device_ms  # the speed of this board in units of the sibling's
            work = work_ms(graph.table, batch, DeviceView.of(device)) @ graph.count
            shares = np.minimum(work / sibling_ms, 1.0).tolist()
            drawn_w = f * self._power.power_w(device, 1.0, shares)
            highest_w = f * device.known("power_limit_w")
            if limit_w >= highest_w:
                return None
            slower = law.log_slowdown(limit_w, drawn_w, highest_w)
            own = law.log_slowdown(highest_w, drawn_w, highest_w)
            power_w = drawn_w * exp(float(law.log_power_ratio(limit_w, drawn_w)))
            log_slowdown = max(0.0, float(slower - own))
            found.append(Limited(log_slowdown, power_w, limit_w / highest_w, device.name))
        least = min(found, key=lambda one: one.log_slowdown, default=None)
        return least if least and least.log_slowdown > LEAST else None


def limit_warnings(device: Device, limited: Limited | None) -> Iterator[str]:
    """Yield the warnings about a board's power limit."""
    if limited is None or limited.log_slowdown < WORTH_TELLING:
        return
    yield (
        f"the power limit of {device.name}, {device.power_limit_w:,} W, slows this down by "
        f"{100 * (exp(limited.log_slowdown) - 1):.0f} %: estimated from {limited.sibling} and from "
        "how boards slow down whose limit is lowered, never measured"
    )
