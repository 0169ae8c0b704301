"""Board power: what a board draws while it waits, and what the shares of its peaks add to it.

    P = waiting + (limit - waiting) · busy · u    u = s / (1 + s^sharpness)^(1 / sharpness)
    s = (floor + Σ coefficient · achieved share) · silicon^exponent

u is a rising function of the shares below 1, so P is never below idle nor above the limit, more
work in the same time never draws less, and a precision counts by what it makes the device do only.

Waiting is more than idle where the memory is on the board: its clock, and that of the chip, falls
seconds after the last process only. Memory in the chip's package has one clock, so such a board
waits at its idle power. Silicon is what the multiprocessors can draw at the boost clock over what
the limit leaves for it: a P100 never reaches its limit, a T4 would go far beyond its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import (
    USUAL_CLOCK_MHZ,
    DeviceView,
    roofline_parts_ms,
)
from dippm.estimate.features.kernel_table import KernelTable

Floats = NDArray[np.float64]
SHARES = ("tensor", "vector", "elementwise", "memory")
IDLE_SHARE = {"data centre": 0.14, "workstation": 0.08}
"""Idle power over the limit of a device whose idle power nobody wrote down."""

USUAL_SILICON = 0.75
"""SM · GHz² per W between limit and idle, of the median board whose power was measured."""
_DOUBLE_WIDTH = 6.1
"""Compute capability of the one generation whose multiprocessors have twice the lanes of those
before and after, each lane with a pipe of its own."""

_MATRIX = np.array([row.matrix for row in KERNEL_CLASSES.values()])
_FP32 = UNITS.index("fp32")


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The law above.

    Attributes:
        floor: what a running kernel draws beside its work, as a share of limit minus idle.
        coefficients: of SHARES, none negative.
        sharpness: how suddenly power stops at the limit, above 0.
        log_error: spread of the log error of power on laboratories and GPUs left out.
        waiting_share: power of a board with its own memory while a process waits, over its limit.
        silicon_exponent: how far the score follows the silicon, 0 to leave every board to its
            limit.
    """

    floor: float
    coefficients: tuple[float, ...]
    sharpness: float
    log_error: float
    waiting_share: float = 0.0
    silicon_exponent: float = 0.0

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
        if self.silicon_exponent:
            score *= silicon(device) ** self.silicon_exponent
        u: float = score / (1.0 + score**self.sharpness) ** (1.0 / self.sharpness)
        limit = device.known("power_limit_w")
        waiting = self.waiting_w(device)
        return waiting + (limit - waiting) * min(1.0, max(0.0, busy)) * u

    def waiting_w(self, device: Device) -> float:
        """Return the power of a board between the kernels of a process, in W.

        Raises:
            DeviceError: if neither idle power nor power limit is known.
        """
        idle = idle_power_w(device)
        if device.memory_family != "board" or not self.waiting_share:
            return idle
        return max(idle, self.waiting_share * device.known("power_limit_w"))


def silicon(device: Device) -> float:
    """Return what the multiprocessors can draw over what the limit leaves, 1 for the usual board.

    Dynamic power is proportional to clock and to the square of the voltage, which rises about as
    the square root of the clock near the top of its range: multiprocessors · clock².

    Raises:
        DeviceError: if multiprocessors or power limit are not known.
    """
    width = 2.0 if device.compute_capability == _DOUBLE_WIDTH else 1.0
    clock_ghz = (device.boost_clock_mhz or USUAL_CLOCK_MHZ) / 1e3
    room_w = device.known("power_limit_w") - idle_power_w(device)
    return width * device.known("sm_count") * clock_ghz**2 / room_w / USUAL_SILICON


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
