"""Board power: bounded by idle power and the power limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from dippm.devices import Device

POWER_FEATURES = ("one", "compute", "memory", "half", "tf32")


@dataclass(frozen=True, slots=True)
class PowerModel:
    """P = idle + (limit - idle) · busy · u with u = sigmoid(coefficients · features).

    Attributes:
        idle_fraction: idle power over the power limit.
        coefficients: of POWER_FEATURES.
        log_error: standard deviation of the log error on operators left out.
    """

    idle_fraction: float
    coefficients: tuple[float, ...]
    log_error: float

    def power_w(self, device: Device, busy: float, features: Sequence[float]) -> float:
        """Return the mean board power, in W.

        Args:
            device: its power limit bounds the answer.
            busy: share of the time in which a kernel runs, 0 to 1.
            features: POWER_FEATURES: 1, achieved share of the compute peak, achieved share of the
                bandwidth, share of time in half-precision and in TF32 kernels.
        """
        score = sum(c * f for c, f in zip(self.coefficients, features, strict=True))
        u = 1.0 / (1.0 + exp(-max(-30.0, min(30.0, score))))
        limit = device.known("power_limit_w")
        idle = self.idle_fraction * limit
        return idle + (limit - idle) * min(1.0, max(0.0, busy)) * u
