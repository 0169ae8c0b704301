"""From errors of held-out rows to the interval around a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

COVERAGE = 0.9


def residuals(log_ratios: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Return what turns a prediction into an interval; see `dippm.models.pmgns`."""
    tail = (1 - COVERAGE) / 2
    low, high, upper = np.quantile(log_ratios, [tail, 1 - tail, 0.99])
    return {
        "coverage": COVERAGE,
        "low": float(min(low, 0.0)),
        "high": float(max(high, 0.0)),
        "upper_99": float(max(upper, 0.0)),
    }
