"""How probable it is that the first of a ranking is really the first.

The log error of a prediction on place c is normal, with the standard deviation that its interval
states. Errors of one model go together: what is wrong in its graph or in the efficiency of a kernel
is wrong on every GPU, and more so on two slices of one GPU. So

    e_c = sd_c · (√r_c · z + √(s − r_c) · z_board(c) + √(1 − s) · z_c)      z's standard normal

with r_c the part that all GPUs share (SHARED for a GPU that the predictor learned from, SHARED_NEW
for others) and s = SHARED_BOARD the part that slices of one GPU share. The three numbers are what
`python -m training.studies.shared_errors WORK` finds in predictions that were held out, rounded to
the side that makes the answer less sure: 0.42 between measured GPUs, 0.18 from a measured to a new
one, -0.07 between new ones, 0.68 between slices (of three architectures only). What comes
on top of the latency, the error of the power in an energy, is not taken to be shared: that makes
the answer less sure of itself, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING
from zlib import crc32

from dippm.estimate.models.targets import Estimate, Interval, two_sided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHARED = 0.4
SHARED_NEW = 0.0
SHARED_BOARD = 0.5
DRAWS = 20_000
"""The standard error of a probability is at most 0.4 %."""


@dataclass(frozen=True, slots=True)
class UncertainValue:
    """A quantity to be minimised on one place, with the uncertainty of its prediction.

    Attributes:
        name: name of the hardware, which seeds its own errors: others in the ranking change
            nothing, and of two names of the same hardware the first in the ranking wins.
        board: name of the GPU, or of the GPU that the slice belongs to.
        log_value: logarithm of the predicted quantity.
        log_sd: standard deviation of the log error of the latency.
        other_log_sd: standard deviation of further log errors; 0 without any.
        measured: whether the predictor was trained on the GPU.
    """

    name: str
    board: str
    log_value: float
    log_sd: float
    other_log_sd: float = 0.0
    measured: bool = True

    @classmethod
    def of(
        cls, name: str, board: str, burden: Estimate, latency: Estimate, *, measured: bool
    ) -> UncertainValue:
        """Return a value by the intervals of the quantity and of the latency."""
        # Independent errors: the variance beyond that of the latency belongs to the other factor.
        whole, own = log_sd(burden.interval), log_sd(latency.interval)
        other = sqrt(max(0.0, whole**2 - own**2))
        return cls(name, board, log(burden.value), min(own, whole), other, measured)


def log_sd(interval: Interval) -> float:
    """Return the standard deviation of the log error that an interval states."""
    half_width = log(interval.high / interval.low) / 2
    return half_width / two_sided(interval.coverage)


def probabilities_first(places: Sequence[UncertainValue]) -> list[float]:
    """Return the probability of each place to have the smallest value; they sum to 1.

    Monte Carlo with fixed seeds: equal places get equal answers.
    """
    if len(places) < 2:
        return [1.0] * len(places)
    import numpy as np

    values = np.stack([place.log_value + _errors(place) for place in places])
    first = np.bincount(values.argmin(axis=0), minlength=len(places))
    return [float(share) for share in first / DRAWS]


def correlation(one: UncertainValue, other: UncertainValue) -> float:
    """Return the correlation of the log errors of latencies on two places."""
    if one.board == other.board:
        return max(SHARED_BOARD, _shared_part(one))
    return sqrt(_shared_part(one) * _shared_part(other))


def _shared_part(place: UncertainValue) -> float:
    return SHARED if place.measured else SHARED_NEW


def _errors(place: UncertainValue) -> NDArray[np.float64]:
    shared = _shared_part(place)
    # Shares of the variance; the name seeds the draw, so equal names have the same error.
    parts = (
        (shared, "all GPUs"),
        (max(0.0, SHARED_BOARD - shared), f"board {place.board}"),
        (1 - max(SHARED_BOARD, shared), f"place {place.name}"),
    )
    of_latency = sum(sqrt(part) * _draws(whose) for part, whose in parts)
    return place.log_sd * of_latency + place.other_log_sd * _draws(f"other {place.name}")


def _draws(whose: str) -> NDArray[np.float64]:
    import numpy as np

    return np.random.default_rng(crc32(whose.encode())).standard_normal(DRAWS)
