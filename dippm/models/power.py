"""Board power: idle power, and what the achieved shares of the device's peaks add to it.

    P = idle + (limit - idle) · busy · u          u = s / (1 + s^sharpness)^(1 / sharpness)
    s = floor + Σ coefficient · achieved share

u is a rising function of the shares below 1, so P is never below idle nor above the limit, more
work in the same time never draws less, and a precision counts by what it makes the device do only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device
from dippm.features.kernel import UNITS
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.features.kernel_table import KernelTable

Floats = NDArray[np.float64]
SHARES = ("tensor", "vector", "elementwise", "memory")
IDLE_SHARE = {"data centre": 0.14, "workstation": 0.08}
"""Idle power over the limit of a device whose idle power nobody wrote down."""

_MATRIX = np.array([row.matrix for row in KERNEL_CLASSES.values()])
_FP32 = UNITS.index("fp32")


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The law above.

    Attributes:
        floor: what a running kernel draws beside its work, as a share of limit minus idle.
        coefficients: of SHARES, none negative.
        sharpness: how suddenly power stops at the limit, above 0.
        log_error: spread of the log error of power on operators and models left out.
    """

    floor: float
    coefficients: tuple[float, ...]
    sharpness: float
    log_error: float

    def power_w(self, device: Device, busy: float, shares: Sequence[float]) -> float:
        """Return the mean board power, in W.

        Args:
            device: its idle power and its power limit bound the answer.
            busy: share of the time in which a kernel runs, 0 to 1.
            shares: SHARES while kernels run, each 0 to 1: see `achieved_shares`.

        Raises:
            DeviceError: if the device's power limit is not known.
        """
        score = self.floor + sum(c * s for c, s in zip(self.coefficients, shares, strict=True))
        u: float = score / (1.0 + score**self.sharpness) ** (1.0 / self.sharpness)
        limit = device.known("power_limit_w")
        idle = idle_power_w(device)
        return idle + (limit - idle) * min(1.0, max(0.0, busy)) * u


def idle_power_w(device: Device) -> float:
    """Return the idle power of a board in W: its own, or that of its class.

    Raises:
        DeviceError: if neither idle power nor power limit is known.
    """
    if device.idle_power_w is not None:
        return device.idle_power_w
    kind = "data centre" if device.mig_profiles else "workstation"
    return IDLE_SHARE[kind] * device.known("power_limit_w")


def achieved_shares(
    table: KernelTable, batch: int, view: DeviceView, busy_ms: float
) -> tuple[float, ...]:
    """Return SHARES: the work of all kernels over what the device could do in their time.

    Args:
        table: the kernels.
        batch: samples.
        view: the device.
        busy_ms: time in which kernels run, in ms, above 0.
    """
    return tuple(min(1.0, float(part.sum()) / busy_ms) for part in work_ms(table, batch, view))


def work_ms(table: KernelTable, batch: int, view: DeviceView) -> Floats:
    """Return how long each kernel would take at the device's peaks, by SHARES, in ms, shape (4, K).

    Products count by the unit that carries them: "tensor" where it is faster than plain fp32, else
    "vector". Other arithmetic is "elementwise", at the fp32 rate; "memory" are bytes moved.
    """
    compute, memory = roofline_parts_ms(table, batch, view)
    matrix = _MATRIX[table.kind]
    faster = view.peak_flops_per_ms[table.unit] > view.peak_flops_per_ms[_FP32]
    chosen = (matrix & faster, matrix & ~faster, ~matrix)
    return np.stack([*(np.where(those, compute, 0.0) for those in chosen), memory])
