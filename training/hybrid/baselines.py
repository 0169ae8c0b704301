"""What stands beside the default predictor: baselines on its own rows and folds, reference table.

Class multipliers: Σ over kernel classes of (multiplier × roofline time), fitted on log latency.
Boosted trees on totals: operations, elements, launches and input bytes of the whole model.
Nearest neighbour: the label of the most alike training row; if it wins on a split, the split leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.latency_splits import SPLITS
from dippm.features.kernel_features import FEATURE_NAMES, N_KINDS
from training.evaluation.metrics import grouped_errors
from training.hybrid.batches import Indices
from training.hybrid.examples import Examples
from training.hybrid.folds import Task
from training.hybrid.views import REFERENCE

Floats = NDArray[np.float64]
Fitted = Callable[[Floats], Floats]
Fit = Callable[[Floats, Floats], Fitted]


def baselines(examples: Examples, tasks: Mapping[str, Sequence[Task]]) -> list[dict[str, Any]]:
    """Return one row per baseline and split: errors in percent on the reference table."""
    table = np.array([REFERENCE.holds(row) for row in examples.rows])
    classes, totals = _class_ms(examples, table), _totals(examples, table)
    latency = np.exp(examples.log_latency.astype(np.float64))
    families = np.array([row.family for row in examples.rows])
    lines = []
    for split, parts in tasks.items():
        for name, fit, inputs in _each(classes, totals):
            rows, predicted = [], []
            for task in parts:
                mine, train = task.test[table[task.test]], task.train[table[task.train]]
                if len(mine) and len(train):
                    rows.append(mine)
                    predicted.append(fit(inputs[train], latency[train])(inputs[mine]))
            if not rows:
                continue
            held: Indices = np.concatenate(rows)
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


def _each(classes: Floats, totals: Floats) -> tuple[tuple[str, Fit, Floats], ...]:
    return (
        ("FLOPs-proportional", _proportional, totals),
        ("bare roofline sum", _bare, classes),
        ("one multiplier per kernel class", _multipliers, classes),
        ("boosted trees on totals", _trees, totals),
        ("nearest neighbour", _nearest, totals),
    )


def _proportional(totals: Floats, latency: Floats) -> Fitted:
    scale = float(np.median(latency / np.exp(totals[:, 0])))
    return lambda held: scale * np.exp(held[:, 0])


def _bare(classes: Floats, latency: Floats) -> Fitted:
    return lambda held: np.asarray(held.sum(axis=1))


def _multipliers(classes: Floats, latency: Floats) -> Fitted:
    def residual(log_multiplier: Floats) -> Floats:
        predicted = classes @ np.exp(log_multiplier)
        return np.concatenate([np.log(predicted / latency), 0.05 * log_multiplier])

    start = np.full(classes.shape[1], 0.2)
    found = least_squares(residual, start, loss="soft_l1", f_scale=0.1).x
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


def _class_ms(examples: Examples, wanted: NDArray[np.bool_]) -> Floats:
    """Return the roofline time of each kernel class, in ms, shape (R, classes); 0 if unwanted."""
    sums = np.zeros((len(examples.rows), N_KINDS))
    for row in np.flatnonzero(wanted):
        part = examples.of_row(row)
        time = np.exp(examples.log_roofline[part].astype(np.float64)) * examples.count[part]
        sums[row] = time @ examples.features[part, :N_KINDS]
    return sums


def _totals(examples: Examples, wanted: NDArray[np.bool_]) -> Floats:
    """Return log totals of a row: operations, elements written, launches, input bytes."""
    flops, elements = (FEATURE_NAMES.index(n) for n in ("log_flops", "log_elements"))
    totals = np.zeros((len(examples.rows), 4))
    for row in np.flatnonzero(wanted):
        part = examples.of_row(row)
        count = examples.count[part].astype(np.float64)
        work = np.expm1(examples.features[part][:, [flops, elements]].astype(np.float64))
        totals[row, :2] = count @ work
        totals[row, 2:] = examples.launches[row], examples.input_bytes[row]
    return np.log1p(totals)
