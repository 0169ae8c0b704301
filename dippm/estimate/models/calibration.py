"""Calibration: the offsets of one GPU from the shared law, by a few measurements.

T_i = smoothmax(e^o Σ_c t_ic e^(o_c), H_i e^h) + copy_i, fitted to log T_i by Gauss-Newton steps.
Each offset is pulled to zero as strongly as offsets between measured GPUs are small, so that few
rows move only what they speak of. Single operators, measured in a loop of their own, share offsets
that whole models do not have: warm caches, another library's choice of kernels. A hundred of them
therefore say less of models than ten models do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from dippm.base.printable import printable
from dippm.devices.check import MOST_ROWS, MOST_SOFTWARE
from dippm.devices.device import FEWEST_LAUNCHES, CalibratedModel, Calibration
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.novelty import with_biases_as_norms

Floats = NDArray[np.float64]
COMMON_SD, CLASS_SD, LAUNCH_SD, NOISE_SD = 0.2, 0.1, 0.7, 0.05
"""Prior standard deviations in the log: of all kernels, of one class, of the launch time; noise."""

ALONE_COMMON_SD, ALONE_CLASS_SD = 0.3, 0.2
"""Prior standard deviations in the log of what single operators add: to all kernels, to a class."""

STEPS = 30
HUBER = 0.1
FEWEST_FOR_ERROR = 3
MOST_MODELS = MOST_ROWS
"""That a device file keeps."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement, with the uncalibrated prediction for it.

    Attributes:
        model: rows of one model are left out together when the error is estimated.
        class_ms: predicted device time by kernel class, in the order of KERNEL_CLASSES.
        launches: number of kernels; fewer than FEWEST_LAUNCHES are about a single operator.
        host_ms: launches × launch time; 0 if the clock does not see the host.
        copy_ms: time of copying the inputs that the clock sees.
        latency_ms: measured latency.
        regime: mode and precision, see `Calibration.regimes`; empty if not known.
        before_ms: predicted latency without calibration; None if it was not asked for.
    """

    model: str
    class_ms: Floats
    launches: float
    host_ms: float
    copy_ms: float
    latency_ms: float
    regime: str = ""
    before_ms: float | None = None


def calibrate(rows: Sequence[MeasuredRow], base: str) -> Calibration:
    """Fit the offsets of a GPU, and their error on models left out.

    Args:
        rows: measurements, at least one.
        base: name of the device whose predictions `rows` contain.
    """
    offsets, added, launch_log_sd = _fit(rows)
    alone = _alone(rows)
    left_out = _errors_left_out(rows)
    before = [log(r.before_ms / r.latency_ms) for r in rows if r.before_ms]
    return Calibration(
        base=base,
        log_slowdown=float(offsets[0]),
        log_launch=float(offsets[1]),
        classes=_named(offsets, rows),
        rows=len(rows),
        operator_log_slowdown=float(added[0]),
        operator_classes=_named(added, [r for r, one in zip(rows, alone, strict=True) if one]),
        operator_rows=int(alone.sum()),
        log_error=None if left_out is None else _root_mean_square(left_out),
        log_error_before=_root_mean_square(before) if before else None,
        novelty=_mean_novelty(rows),
        launch_log_sd=launch_log_sd,
        models=() if left_out is None else _models(rows, left_out),
        regimes=tuple(
            sorted({r.regime for r, one in zip(rows, alone, strict=True) if r.regime and not one})
        ),
    )


def offsets_of(found: Calibration) -> Floats:
    """Return the offsets that `log_ms` takes for whole models, shape (2 + C,)."""
    classes = [found.classes.get(name, 0.0) for name in KERNEL_CLASSES]
    return np.array([found.log_slowdown, found.log_launch, *classes])


def log_ms(rows: Sequence[MeasuredRow], offsets: Floats) -> tuple[Floats, Floats]:
    """Return (log latency of rows, its derivative by the offsets), shapes (R,) and (R, 2 + C).

    Args:
        rows: R measurements.
        offsets: offsets of the common factor, the launch time and each class, (2 + C,), or
            (R, 2 + C).
    """
    each = np.broadcast_to(offsets, (len(rows), 2 + len(KERNEL_CLASSES)))
    class_ms = np.array([r.class_ms for r in rows]) * np.exp(each[:, :1] + each[:, 2:])
    host = np.array([r.host_ms for r in rows]) * np.exp(each[:, 1])
    device = np.maximum(class_ms.sum(axis=1), 1e-12)
    high = np.maximum(device, host)
    powers = (device / high) ** OVERLAP_POWER + (host / high) ** OVERLAP_POWER
    wall = high * powers ** (1 / OVERLAP_POWER)
    total = wall + np.array([r.copy_ms for r in rows])
    of_device = (device / wall) ** OVERLAP_POWER * wall / total
    of_host = (host / wall) ** OVERLAP_POWER * wall / total
    slopes = np.empty(each.shape)
    slopes[:, 0], slopes[:, 1] = of_device, of_host
    slopes[:, 2:] = class_ms / device[:, None] * of_device[:, None]
    return np.log(total), slopes


def no_offsets() -> Floats:
    """Return the offsets of a device without deviation, shape (2 + C,)."""
    return np.zeros(2 + len(KERNEL_CLASSES))


def _alone(rows: Sequence[MeasuredRow]) -> NDArray[np.bool_]:
    return np.array([r.launches < FEWEST_LAUNCHES for r in rows], dtype=bool)


def _named(offsets: Floats, rows: Sequence[MeasuredRow]) -> dict[str, float]:
    """Return the offsets of classes that some row has, by name."""
    used = np.sum([r.class_ms for r in rows], axis=0) > 0 if rows else np.zeros(len(KERNEL_CLASSES))
    return {name: float(offsets[2 + k]) for k, name in enumerate(KERNEL_CLASSES) if used[k]}


def _fit(rows: Sequence[MeasuredRow]) -> tuple[Floats, Floats, float]:
    """Return the offsets of whole models, those of single operators on top, and an uncertainty.

    Returns:
        Both offsets, shapes (2 + C,), and the posterior standard deviation of that of the launch
        time, which is its prior one if no row is bound by its host.
    """
    label = np.log([r.latency_ms for r in rows])
    alone = _alone(rows).astype(np.float64)[:, None]
    classes = np.ones(len(KERNEL_CLASSES))
    shared = np.r_[COMMON_SD, LAUNCH_SD, CLASS_SD * classes]
    pull = NOISE_SD**2 * np.r_[shared, ALONE_COMMON_SD, ALONE_CLASS_SD * classes] ** -2.0
    every = np.zeros(len(pull))
    for _ in range(STEPS):
        offsets, added = _split(every)
        predicted, slopes = log_ms(rows, offsets + alone * added)
        slopes = np.hstack([slopes, alone * np.delete(slopes, 1, axis=1)])
        error = predicted - label
        weight = 1 / np.sqrt(1 + (error / HUBER) ** 2)
        normal = (slopes * weight[:, None]).T @ slopes + np.diag(pull)
        step = np.linalg.solve(normal, slopes.T @ (weight * error) + pull * every)
        every = every - np.clip(step, -0.5, 0.5)
    launch_log_sd = NOISE_SD * float(np.sqrt(np.linalg.inv(normal)[1, 1]))
    return *_split(every), launch_log_sd


def _split(every: Floats) -> tuple[Floats, Floats]:
    """Return offsets of all rows, and of single operators: those add nothing to launches."""
    size = 2 + len(KERNEL_CLASSES)
    return every[:size], np.insert(every[size:], 1, 0.0)


def _errors_left_out(rows: Sequence[MeasuredRow]) -> Floats | None:
    """Return the log error of each row with its model left out, (R,); None if too few models."""
    models = sorted({r.model for r in rows})
    if len(models) < FEWEST_FOR_ERROR:
        return None
    errors = np.zeros(len(rows))
    for model in models:
        places = [i for i, r in enumerate(rows) if r.model == model]
        mine = [rows[i] for i in places]
        offsets, added, _ = _fit([r for r in rows if r.model != model])
        predicted, _ = log_ms(mine, offsets + _alone(mine)[:, None] * added)
        errors[places] = predicted - np.log([r.latency_ms for r in mine])
    return errors


def _models(rows: Sequence[MeasuredRow], left_out: Floats) -> tuple[CalibratedModel, ...]:
    """Return the whole models among the rows, at most MOST_MODELS of them; none if they are few.

    Of more than that those are kept that are farthest from one another, so that a model that is
    asked about is as near to what was measured as it was; what the others erred is not.
    """
    by_model: dict[str, list[int]] = {}
    for i, one in enumerate(_alone(rows)):
        if not one:
            by_model.setdefault(rows[i].model, []).append(i)
    if len(by_model) < FEWEST_FOR_ERROR:
        return ()
    shares = np.array(
        [
            np.mean([time_shares(rows[i].class_ms) for i in mine], axis=0)
            for mine in by_model.values()
        ]
    )
    away = np.abs(shares[:, None] - shares[None]).sum(axis=2) / 2
    kept = _spread_out(away, MOST_MODELS)
    np.fill_diagonal(away, np.inf)
    found = []
    for name, mine, share, nearest in zip(
        by_model, by_model.values(), shares, away.min(axis=1), strict=True
    ):
        named = {k: round(float(s), 4) for k, s in zip(KERNEL_CLASSES, share, strict=True) if s > 0}
        found.append(
            CalibratedModel(
                name=printable(name)[:MOST_SOFTWARE],
                log_error=_root_mean_square(left_out[mine]),
                distance=min(float(nearest), 1.0),
                shares={k: s for k, s in named.items() if s > 0},
            )
        )
    return tuple(found[i] for i in kept)


def _spread_out(away: Floats, most: int) -> list[int]:
    """Return the places of at most so many points, the farthest from those before it next."""
    if len(away) <= most:
        return list(range(len(away)))
    kept, nearest = [0], away[0].copy()
    while len(kept) < most:
        kept.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, away[kept[-1]])
    return sorted(kept)


def time_shares(class_ms: Floats) -> Floats:
    """Return the shares of time by kernel class, biases as norms, shape (C,); 0 if there is none.

    Unlike `shares_of` it counts predicted time, not roofline time: what a calibration corrects.
    """
    return with_biases_as_norms(class_ms / max(float(class_ms.sum()), 1e-12))


def _root_mean_square(errors: Floats | Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _mean_novelty(rows: Sequence[MeasuredRow]) -> float | None:
    """Return the mean distance of a row to the nearest of another model; None if there is none.

    Single operators count where nothing else was measured.
    """
    alone = _alone(rows)
    kept = [r for r, one in zip(rows, alone, strict=True) if alone.all() or not one]
    shares = np.array([time_shares(r.class_ms) for r in kept])
    model = np.array([r.model for r in kept])
    nearest = []
    for mine, name in zip(shares, model, strict=True):
        others = shares[model != name]
        if len(others):
            nearest.append(float(np.abs(others - mine).sum(axis=1).min() / 2))
    return fmean(nearest) if nearest else None
