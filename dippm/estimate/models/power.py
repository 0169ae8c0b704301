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
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import USUAL_CLOCK_MHZ, DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.intervals import COVERAGE, Z90
from dippm.estimate.models.targets import Estimate

Floats = NDArray[np.float64]
SHARES = ("tensor", "vector", "elementwise", "memory")
IDLE_SHARE = {"data centre": 0.14, "workstation": 0.08}
"""Idle power over the limit of a device whose idle power is not known."""

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
        floor: power of a running kernel besides its work, as a share of limit minus idle.
        coefficients: non-negative coefficients of SHARES.
        sharpness: sharpness of the transition to the limit, above 0.
        log_error: spread of the log error of power on laboratories and GPUs left out.
        waiting_share: power of a board with its own memory while a process waits, over its limit.
        silicon_exponent: exponent of the silicon in the score; 0 if only the limit counts.
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


def absent_power(c: Conditions) -> str | None:
    """Return why the power under some conditions cannot be had; None if it can."""
    if c.mig is not None:
        return "power is measured for the board, not for a MIG slice"
    if c.device.power_limit_w is None:
        return f"the power limit of {c.device.name} is not known"
    return None


def power_estimate(power: PowerModel, device: Device, power_w: float) -> Estimate:
    """Return a predicted mean power in W with its interval, which idle power and limit bound.

    Raises:
        DeviceError: if the device's power limit is not known.
    """
    estimate = Estimate.around(power_w, Z90 * power.log_error, COVERAGE)
    return estimate.clipped(idle_power_w(device), device.known("power_limit_w"))


def energy_estimate(power_w: Estimate, latency: Estimate) -> Estimate:
    """Return the energy of a pass in J: mean power in W times latency in ms / 1000.

    Its errors are taken as independent: the half widths add in squares in the log.
    """
    value = power_w.value * latency.value / 1e3
    half = np.hypot(
        np.log(power_w.interval.high / power_w.value), np.log(latency.interval.high / latency.value)
    )
    return Estimate.around(value, float(half), COVERAGE)


def energy_shares(
    power: PowerModel,
    waiting_w: float,
    energy_j: float,
    total_ms: float,
    times: Floats,
    work: Floats,
) -> tuple[Floats, float]:
    """Return the energy of each kernel in J, shape (K,), and that of the host; they sum to all.

        E   = waiting · T + active                 the law of the module, times the latency
        E_i = waiting · t_i + active · s_i / Σ s   s_i = floor · t_i + Σ coefficient · work_i

    Nothing of the law is changed: a kernel has the board's waiting power while it runs, and of
    what comes on top as much as it adds to the score s, which is linear in kernels. That power
    rises less the more a board does (u of the law) is a property of the whole pass and falls on
    all alike. What the board draws while it waits for the host is the host's.

    Args:
        power: the law that the energy comes from.
        waiting_w: power of the board between kernels.
        energy_j: energy of the whole pass.
        total_ms: its latency.
        times: times of the kernels in ms, shape (K,).
        work: times of their work at the device's peaks, see `work_ms`, shape (4, K).
    """
    busy_ms = float(times.sum())
    waiting_j = min(waiting_w * total_ms / 1e3, energy_j)
    scores = power.floor * times
    for coefficient, part in zip(power.coefficients, work, strict=True):
        whole_ms = float(part.sum())
        if whole_ms > 0:  # a share of more than all of a peak counts as all of it
            scores = scores + coefficient * part * min(1.0, busy_ms / whole_ms)
    score = float(scores.sum())
    if score <= 0:
        scores, score = times, busy_ms
    waiting = waiting_j / total_ms * times
    found = waiting + (energy_j - waiting_j) * scores / max(score, 1e-300)
    return found, energy_j - float(found.sum())
