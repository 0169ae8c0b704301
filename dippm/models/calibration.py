"""A few measurements on one GPU → what the shared law must add there.

T_i = smoothmax(e^o Σ_c t_ic e^(o_c), H_i e^h) + copy_i, fitted to log T_i by Gauss-Newton steps.
Each offset is pulled to zero as strongly as offsets between measured GPUs are small, so that few
rows move only what they speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.devices.device import Calibration
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.models.host import OVERLAP_POWER

Floats = NDArray[np.float64]
COMMON_SD, CLASS_SD, LAUNCH_SD, NOISE_SD = 0.5, 0.15, 0.7, 0.05
"""Prior standard deviations in the log: of all kernels, of one class, of the launch time; noise."""

STEPS = 30
HUBER = 0.1
FEWEST_FOR_ERROR = 3


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement beside what is predicted without it.

    Attributes:
        model: rows of one model are left out together when the error is estimated.
        class_ms: predicted device time by kernel class, in the order of KERNEL_CLASSES.
        host_ms: launches × launch time; 0 if the clock does not see the host.
        copy_ms: time of copying the inputs that the clock sees.
        latency_ms: measured.
    """

    model: str
    class_ms: Floats
    host_ms: float
    copy_ms: float
    latency_ms: float


def calibrate(rows: Sequence[MeasuredRow], base: str) -> Calibration:
    """Fit the offsets of a GPU, and their error on models left out.

    Args:
        rows: at least one.
        base: name of the device whose predictions `rows` hold.
    """
    offsets = _fit(rows)
    used = np.array([r.class_ms for r in rows]).sum(axis=0) > 0
    named = {name: float(offsets[2 + k]) for k, name in enumerate(KERNEL_CLASSES) if used[k]}
    return Calibration(
        base=base,
        log_slowdown=float(offsets[0]),
        log_launch=float(offsets[1]),
        classes=named,
        rows=len(rows),
        log_error=_error_of_models_left_out(rows),
    )


def offsets_of(found: Calibration) -> Floats:
    """Return what `log_ms` takes, shape (2 + C,)."""
    classes = [found.classes.get(name, 0.0) for name in KERNEL_CLASSES]
    return np.array([found.log_slowdown, found.log_launch, *classes])


def log_ms(rows: Sequence[MeasuredRow], offsets: Floats) -> tuple[Floats, Floats]:
    """Return (log latency of rows, its derivative by the offsets), shapes (R,) and (R, 2 + C)."""
    class_ms = np.array([r.class_ms for r in rows]) * np.exp(offsets[0] + offsets[2:])
    host = np.array([r.host_ms for r in rows]) * np.exp(offsets[1])
    device = np.maximum(class_ms.sum(axis=1), 1e-12)
    high = np.maximum(device, host)
    powers = (device / high) ** OVERLAP_POWER + (host / high) ** OVERLAP_POWER
    wall = high * powers ** (1 / OVERLAP_POWER)
    total = wall + np.array([r.copy_ms for r in rows])
    of_device = (device / wall) ** OVERLAP_POWER * wall / total
    of_host = (host / wall) ** OVERLAP_POWER * wall / total
    slopes = np.empty((len(rows), len(offsets)))
    slopes[:, 0], slopes[:, 1] = of_device, of_host
    slopes[:, 2:] = class_ms / device[:, None] * of_device[:, None]
    return np.log(total), slopes


def _fit(rows: Sequence[MeasuredRow]) -> Floats:
    label = np.log([r.latency_ms for r in rows])
    pull = np.r_[COMMON_SD, LAUNCH_SD, np.full(len(KERNEL_CLASSES), CLASS_SD)] ** -2.0
    pull *= NOISE_SD**2
    offsets = np.zeros(len(pull))
    for _ in range(STEPS):
        predicted, slopes = log_ms(rows, offsets)
        error = predicted - label
        weight = 1 / np.sqrt(1 + (error / HUBER) ** 2)
        normal = (slopes * weight[:, None]).T @ slopes + np.diag(pull)
        step = np.linalg.solve(normal, slopes.T @ (weight * error) + pull * offsets)
        offsets = offsets - np.clip(step, -0.5, 0.5)
    return np.asarray(offsets)


def _error_of_models_left_out(rows: Sequence[MeasuredRow]) -> float | None:
    """Return the root mean square log error on models that did not calibrate; None if too few."""
    models = sorted({r.model for r in rows})
    if len(models) < FEWEST_FOR_ERROR:
        return None
    errors = []
    for model in models:
        rest = [r for r in rows if r.model != model]
        mine = [r for r in rows if r.model == model]
        predicted, _ = log_ms(mine, _fit(rest))
        errors += (predicted - np.log([r.latency_ms for r in mine])).tolist()
    return float(np.sqrt(np.mean(np.square(errors))))
