"""Comparisons with the default predictor: baselines on its own rows and folds, reference table.

Class multipliers: Σ over kernel classes of (multiplier × roofline time), fitted on log latency.
Boosted trees on totals: operations, elements, launches and input bytes of the whole model.
Nearest neighbour: the label of the most alike training row; if it wins on a split, the split leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.join.latency_splits import SPLITS
from dippm.estimate.features.kernel_features import FEATURE_NAMES, N_KINDS
from training.evaluation.metrics import grouped_errors
from training.hybrid.fit.batches import Indices
from training.hybrid.fit.folds import Task
from training.hybrid.judge.report_strata import REFERENCE
from training.hybrid.rows.examples import Examples

Floats = NDArray[np.float64]
ROOFLINE = "bare roofline sum"
"""The one that has nothing to fit."""
Fitted = Callable[[Floats], Floats]
Fit = Callable[[Floats, Floats], Fitted]


def baselines(examples: Examples, tasks: Mapping[str, Sequence[Task]]) -> list[dict[str, Any]]:
    """Return one row per baseline and split: errors in percent on the reference table."""
    table = np.array([REFERENCE.contains(row) for row in examples.rows])
    inputs = Inputs.of(examples, np.flatnonzero(table))
    latency = np.exp(examples.log_latency.astype(np.float64))
    families = np.array([row.family for row in examples.rows])
    lines = []
    for split, parts in tasks.items():
        folds = [(task.train[table[task.train]], task.test[table[task.test]]) for task in parts]
        folds = [(train, mine) for train, mine in folds if len(train) and len(mine)]
        if not folds:
            continue
        held: Indices = np.concatenate([mine for _, mine in folds])
        for name in NAMES:
            predicted = [inputs.predict(name, latency, *fold) for fold in folds]
            error = grouped_errors(latency[held], np.concatenate(predicted), list(families[held]))
            lines.append(
                {
                    "baseline": name,
                    "split": SPLITS[split],
                    "n": error.micro.n,
                    "mape": round(error.micro.mape, 2),
                    "median_ape": round(error.micro.median_ape, 2),
                    "macro_mape": round(error.macro.mape, 2),
                    "acc10": round(error.micro.acc10, 1),
                }
            )
    return lines


@dataclass(frozen=True, slots=True)
class Inputs:
    """What baselines see of each row.

    Attributes:
        classes: roofline time of each kernel class, in ms, shape (R, classes).
        totals: log totals: operations, elements written, launches, input bytes, shape (R, 4).
    """

    classes: Floats
    totals: Floats

    @classmethod
    def of(cls, examples: Examples, wanted: Indices) -> Inputs:
        """Sum up the kernels of the wanted rows; all others are 0."""
        return cls(_class_ms(examples, wanted), _totals(examples, wanted))

    def predict(self, name: str, latency: Floats, train: Indices, test: Indices) -> Floats:
        """Return what a baseline of `NAMES`, fitted on training rows, answers for others, in ms."""
        fit, sees = _FITS[name]
        inputs: Floats = getattr(self, sees)
        return fit(inputs[train], latency[train])(inputs[test])


def _proportional(totals: Floats, latency: Floats) -> Fitted:
    scale = float(np.median(latency / np.exp(totals[:, 0])))
    return lambda held: scale * np.exp(held[:, 0])


def _bare(classes: Floats, latency: Floats) -> Fitted:
    return lambda held: np.asarray(held.sum(axis=1))


def _multipliers(classes: Floats, latency: Floats) -> Fitted:
    def residual(log_multiplier: Floats) -> Floats:
        predicted = classes @ np.exp(log_multiplier)
        return np.concatenate([np.log(predicted / latency), 0.05 * log_multiplier])

    def slopes(log_multiplier: Floats) -> Floats:
        times = classes * np.exp(log_multiplier)
        return np.concatenate([times / times.sum(axis=1, keepdims=True), 0.05 * np.eye(width)])

    width = classes.shape[1]
    found = least_squares(residual, np.full(width, 0.2), slopes, loss="soft_l1", f_scale=0.1).x
    return lambda held: np.asarray(held @ np.exp(found))


def _trees(totals: Floats, latency: Floats) -> Fitted:
    import xgboost

    settings = {"max_depth": 5, "eta": 0.05, "subsample": 0.8, "seed": 0, "nthread": 1}
    model = xgboost.train(settings, xgboost.DMatrix(totals, np.log(latency)), num_boost_round=400)
    return lambda held: np.exp(model.predict(xgboost.DMatrix(held)).astype(np.float64))


def _nearest(totals: Floats, latency: Floats) -> Fitted:
    mean, deviation = totals.mean(axis=0), totals.std(axis=0) + 1e-9
    known = (totals - mean) / deviation

    def predict(held: Floats) -> Floats:
        asked = (held - mean) / deviation
        distance = ((asked[:, None, :] - known[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(latency[distance.argmin(axis=1)])

    return predict


def _class_ms(examples: Examples, wanted: Indices) -> Floats:
    """Return the roofline time of each kernel class, in ms, shape (R, classes); 0 if unwanted."""
    sums = np.zeros((len(examples.rows), N_KINDS))
    sums[wanted] = examples.class_roofline_ms()[wanted]
    return sums


def _totals(examples: Examples, wanted: Indices) -> Floats:
    """Return log totals of a row: operations, elements written, launches, input bytes."""
    flops, elements = (FEATURE_NAMES.index(n) for n in ("log_flops", "log_elements"))
    totals = np.zeros((len(examples.rows), 4))
    for row in wanted:
        part = examples.of_row(row)
        count = examples.count[part].astype(np.float64)
        work = np.expm1(examples.features[part][:, [flops, elements]].astype(np.float64))
        totals[row, :2] = count @ work
        totals[row, 2:] = examples.launches[row], examples.input_bytes[row]
    return np.log1p(totals)


_FITS: Mapping[str, tuple[Fit, str]] = {
    "FLOPs-proportional": (_proportional, "totals"),
    ROOFLINE: (_bare, "classes"),
    "one multiplier per kernel class": (_multipliers, "classes"),
    "boosted trees on totals": (_trees, "totals"),
    "nearest neighbour": (_nearest, "totals"),
}
NAMES = tuple(_FITS)
"""In the order in which tables list them."""
