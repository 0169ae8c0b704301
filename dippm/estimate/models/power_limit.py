"""How latency and power change when the power limit of a board is lowered: an estimate.

    u = (limit - idle) / (power - idle)          idle = idle_share · highest limit
    time(limit) / time = (1 + (knee / u) ** (sharpness · slope)) ** (1 / sharpness)
    power(limit) / power = (1 + (reach · power / limit) ** bend) ** (-1 / bend)

`power` is the mean power that the work draws without a lower limit. Work that draws less than the
limit is not slowed; below the knee time grows as a power of what the limit leaves above idle. The
figures in `power_limit.json` come from training runs on four GPUs (NSDI 2023 traces of Zeus):
`python -m training.hybrid.fit.power_limit` makes the file anew, and with it the errors on a GPU
left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FILE = "power_limit.json"


@dataclass(frozen=True, slots=True)
class PowerLimitLaw:
    """The two curves above; limits and powers in W, `highest_w` is the limit as delivered.

    Attributes:
        idle_share: idle power of the board over its highest limit, as the curve needs it.
        knee: share of the power above idle at which work begins to slow down.
        sharpness: sharpness of that transition.
        slope: slope of the slow-down below it.
        reach: share of the limit that the mean power reaches.
        bend: sharpness of the transition of power from the limit.
    """

    idle_share: float
    knee: float
    sharpness: float
    slope: float
    reach: float
    bend: float

    def log_slowdown(self, limit_w: Any, power_w: Any, highest_w: Any) -> Floats:
        """Return the logarithm of time at the limit over time without; 0 is as fast."""
        idle = self.idle_share * np.asarray(highest_w, np.float64)
        left = np.maximum(limit_w - idle, 1e-3 * highest_w)
        drawn = np.maximum(power_w - idle, 1e-3 * highest_w)
        over = (self.knee * drawn / left) ** (self.sharpness * self.slope)
        return np.asarray(np.log1p(over) / self.sharpness, np.float64)

    def log_power_ratio(self, limit_w: Any, power_w: Any) -> Floats:
        """Return the logarithm of mean power at the limit over mean power without."""
        over = (self.reach * np.asarray(power_w, np.float64) / limit_w) ** self.bend
        return np.asarray(-np.log1p(over) / self.bend, np.float64)


@dataclass(frozen=True, slots=True)
class Band:
    """Errors of the law on GPUs that it was not fitted to, for limits from a share of the highest.

    Attributes:
        lowest_share: lowest share of the highest limit; the band ends where the next one begins.
        time_log_error: half width of the 90 % interval of the slow-down, logarithmic.
        power_log_error: the same of the power ratio.
        energy_log_error: the same of their product.
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
        law: the curves.
        bands: errors by share of the limit, highest shares first.
        gpus: GPUs that it was fitted to.
    """

    law: PowerLimitLaw
    bands: tuple[Band, ...]
    gpus: tuple[str, ...]

    def band(self, share: float) -> Band | None:
        """Return the errors at a limit that is this share of the highest; None if it is too low."""
        return next((band for band in self.bands if share >= band.lowest_share), None)


@cache
def fitted() -> Fitted:
    """Return the law that is shipped."""
    text = files("dippm.estimate.models").joinpath(FILE).read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return Fitted(
        PowerLimitLaw(**document["law"]),
        tuple(Band(**band) for band in document["bands"]),
        tuple(document["gpus"]),
    )
