"""What stands beside the hybrid predictor: baselines on its own rows and folds, RTX 3090 table.

Class multipliers: Σ over kernel classes of (multiplier × roofline time), fitted on log latency.
Boosted trees on totals: operations, bytes, launches and input bytes of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dippm.features.kernel_features import FEATURE_NAMES, N_KINDS
from training.evaluation.metrics import errors
from training.hybrid.examples import Examples
from training.hybrid.report import SPLITS, VIEWS

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
Fitted = Callable[[Floats], Floats]
TrainingRows = Callable[[str, Indices], Indices]
VIEW = VIEWS[0]


def baselines(
    examples: Examples, folds: Mapping[str, Sequence[Indices]], training_rows: TrainingRows
) -> list[dict[str, Any]]:
    """Return one row per baseline and split: errors in percent on the RTX 3090 table (nchw)."""
    table = np.array([VIEW.holds(row) for row in examples.rows])
    classes, totals = _class_ms(examples, table), _totals(examples, table)
    latency = np.exp(examples.log_latency.astype(np.float64))
    lines = []
    for split in ("S0", "S1", "S2"):
        for name, fit, inputs in (
            ("bare roofline sum", _bare, classes),
            ("one multiplier per kernel class", _multipliers, classes),
            ("boosted trees on totals", _trees, totals),
        ):
            rows, predicted = [], []
            for test in folds[split]:
                mine = test[table[test]]
                train = training_rows(split, test)
                train = train[table[train]]
                rows.append(mine)
                predicted.append(fit(inputs[train], latency[train])(inputs[mine]))
            held = np.concatenate(rows)
            error = errors(latency[held], np.concatenate(predicted))
            lines.append(
                {
                    "baseline": name,
                    "split": SPLITS[split],
                    "n": error.n,
                    "mape": round(error.mape, 2),
                    "median_ape": round(error.median_ape, 2),
                    "acc10": round(error.acc10, 1),
                }
            )
    return lines


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

    settings = {"max_depth": 5, "eta": 0.05, "subsample": 0.8, "seed": 0}
    model = xgboost.train(settings, xgboost.DMatrix(totals, np.log(latency)), num_boost_round=400)
    return lambda held: np.exp(model.predict(xgboost.DMatrix(held)).astype(np.float64))


def _class_ms(examples: Examples, wanted: NDArray[np.bool_]) -> Floats:
    """Return the roofline time of each kernel class, in ms, shape (R, classes); 0 if unwanted."""
    sums = np.zeros((len(examples.rows), N_KINDS))
    for row in np.flatnonzero(wanted):
        part = slice(examples.start[row], examples.start[row + 1])
        time = np.exp(examples.log_roofline[part].astype(np.float64)) * examples.count[part]
        sums[row] = time @ examples.features[part, :N_KINDS]
    return sums


def _totals(examples: Examples, wanted: NDArray[np.bool_]) -> Floats:
    """Return log totals of a row: operations, elements written, launches, input bytes."""
    flops, elements = (FEATURE_NAMES.index(n) for n in ("log_flops", "log_elements"))
    totals = np.zeros((len(examples.rows), 4))
    for row in np.flatnonzero(wanted):
        part = slice(examples.start[row], examples.start[row + 1])
        count = examples.count[part].astype(np.float64)
        work = np.expm1(examples.features[part][:, [flops, elements]].astype(np.float64))
        totals[row, :2] = count @ work
        totals[row, 2:] = examples.launches[row], examples.input_bytes[row]
    return np.log1p(totals)
