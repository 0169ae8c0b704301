"""From errors of held-out rows to the interval around a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.models.intervals import COVERAGE

SMALLEST = 0.003
"""Log errors below this are luck, and say nothing about the size of an error."""

Floats = NDArray[np.float64]


def residuals(log_ratios: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Return what turns a prediction into an interval; see `dippm.estimate.models.pmgns`."""
    tail = (1 - COVERAGE) / 2
    low, high, upper = np.quantile(log_ratios, [tail, 1 - tail, 0.99])
    return {
        "coverage": COVERAGE,
        "low": float(min(low, 0.0)),
        "high": float(max(high, 0.0)),
        "upper_99": float(max(upper, 0.0)),
    }


def error_size(features: Floats, log_errors: Floats, weights: Floats) -> Floats:
    """Return coefficients a of the expected log of the absolute log error, a · f, shape (F,).

    Args:
        features: shape (R, F).
        log_errors: log(predicted / measured), shape (R,).
        weights: weights of the rows, shape (R,).
    """
    target = np.log(np.maximum(np.abs(log_errors), SMALLEST))
    root = np.sqrt(weights / weights.mean())[:, None]
    pull = 1e-2 * np.sqrt(len(target)) * np.eye(features.shape[1])
    pull[0, 0] = 0.0
    left = np.concatenate([features * root, pull])
    right = np.concatenate([target * root[:, 0], np.zeros(features.shape[1])])
    found: Floats = np.linalg.lstsq(left, right, rcond=None)[0]
    return found


def conformal_quantile(scores: Floats, weights: Floats, coverage: float = COVERAGE) -> float:
    """Return the weighted quantile of scores, with the finite-sample correction (n + 1)."""
    order = np.argsort(scores)
    share = np.cumsum(weights[order]) / weights.sum()
    wanted = min(1.0, coverage * (1 + 1 / len(scores)))
    return float(scores[order][np.searchsorted(share, wanted - 1e-12).clip(max=len(scores) - 1)])
