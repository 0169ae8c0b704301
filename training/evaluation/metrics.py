"""Errors of predictions: their size, direction, ranking, and how sure we are of them.

All functions take labels and predictions in the unit of the target, as arrays of one length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
N_RESAMPLES = 2000
SEED = 42


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one target on one set of rows; all but `n`, `log_bias` and `tau` in percent.

    Attributes:
        n: rows.
        mape: mean absolute percentage error.
        median_ape: its median.
        p90: 90th percentile of the absolute percentage error.
        p95: 95th percentile.
        acc5: share of rows within 5 %.
        acc10: share of rows within 10 %.
        rmspe: root mean square percentage error.
        geo: exp(mean |ln(predicted / actual)|) − 1, which does not reward predicting too little.
        log_bias: mean ln(predicted / actual); above 0 is too much.
        tau: Kendall's rank correlation, NaN for less than two rows.
    """

    n: int
    mape: float
    median_ape: float
    p90: float
    p95: float
    acc5: float
    acc10: float
    rmspe: float
    geo: float
    log_bias: float
    tau: float

    def to_dict(self) -> dict[str, float]:
        """Return the fields, for a metrics file."""
        return asdict(self)


def errors(actual: ArrayLike, predicted: ArrayLike) -> Errors:
    """Return all errors of a set of predictions.

    Raises:
        ValueError: if the lengths differ, nothing is given, or a value is not above 0.
    """
    from scipy.stats import kendalltau

    y, p = _pair(actual, predicted)
    ape, log_ratio = absolute_percentage_errors(y, p), np.log(p / y)
    return Errors(
        n=len(y),
        mape=float(ape.mean()),
        median_ape=float(np.median(ape)),
        p90=float(np.percentile(ape, 90)),
        p95=float(np.percentile(ape, 95)),
        acc5=float(100 * (ape <= 5).mean()),
        acc10=float(100 * (ape <= 10).mean()),
        rmspe=float(np.sqrt((ape**2).mean())),
        geo=float(100 * np.expm1(np.abs(log_ratio).mean())),
        log_bias=float(log_ratio.mean()),
        tau=float(kendalltau(y, p).statistic) if len(y) > 1 else float("nan"),
    )


def absolute_percentage_errors(actual: ArrayLike, predicted: ArrayLike) -> Array:
    """Return 100 · |predicted − actual| / actual for each row."""
    y, p = _pair(actual, predicted)
    return 100 * np.abs(p - y) / y


@dataclass(frozen=True, slots=True)
class Grouped:
    """Errors by group (family, device) and over the groups.

    Attributes:
        micro: over all rows.
        macro: mean over groups of each error; `n` is the number of groups.
        worst: name of the group with the largest MAPE.
        groups: errors of each group.
    """

    micro: Errors
    macro: Errors
    worst: str
    groups: Mapping[str, Errors]


def grouped_errors(actual: ArrayLike, predicted: ArrayLike, groups: Sequence[Any]) -> Grouped:
    """Return the errors over all rows, by group, and averaged over groups."""
    y, p = _pair(actual, predicted)
    names = np.asarray([str(group) for group in groups])
    by_group = {str(g): errors(y[names == g], p[names == g]) for g in np.unique(names)}
    fields = [f for f in Errors.__dataclass_fields__ if f != "n"]
    means = {f: _mean([getattr(e, f) for e in by_group.values()]) for f in fields}
    worst = max(by_group, key=lambda name: by_group[name].mape)
    return Grouped(errors(y, p), Errors(n=len(by_group), **means), worst, by_group)


def card_columns(grouped: Grouped, mape_ci95: tuple[float, float]) -> dict[str, Any]:
    """Return the errors of a line of a checkpoint's card, rounded; groups are families."""
    micro, worst = grouped.micro, grouped.groups[grouped.worst]
    low, high = mape_ci95
    return {
        "median_ape": round(micro.median_ape, 2),
        "mape": round(micro.mape, 2),
        "mape_ci95": f"{low:.1f} to {high:.1f}",
        "p90": round(micro.p90, 1),
        "acc10": round(micro.acc10, 1),
        "log_bias": round(micro.log_bias, 3),
        "macro_mape": round(grouped.macro.mape, 2),
        "worst_family": f"{grouped.worst} {worst.mape:.0f}",
    }


def mean_ape(actual: Array, predicted: Array) -> float:
    """Return the MAPE in percent."""
    return float((100 * np.abs(predicted - actual) / actual).mean())


def median_ape(actual: Array, predicted: Array) -> float:
    """Return the median absolute percentage error."""
    return float(np.median(100 * np.abs(predicted - actual) / actual))


def bootstrap(
    actual: ArrayLike,
    predicted: ArrayLike,
    architectures: Sequence[Any],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
) -> tuple[float, float]:
    """Return the 95 % confidence interval of the MAPE, resampling architectures, not rows.

    Rows of one architecture are no independent evidence, so they are drawn together.
    """
    y, p = _pair(actual, predicted)
    rows_of = _rows_of(architectures)
    generator = np.random.default_rng(seed)
    sizes = np.array([len(rows) for rows in rows_of])
    sums = np.array([absolute_percentage_errors(y[rows], p[rows]).sum() for rows in rows_of])
    values = []
    for _ in range(n_resamples):
        drawn = generator.integers(0, len(rows_of), len(rows_of))
        values.append(float(sums[drawn].sum() / sizes[drawn].sum()))
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def coverage(actual: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the share of labels inside their interval, 0 to 1."""
    y = np.asarray(actual, dtype=float)
    return float(((np.asarray(low) <= y) & (y <= np.asarray(high))).mean())


def relative_width(actual: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the mean width of intervals in percent of the label."""
    y = np.asarray(actual, dtype=float)
    return float((100 * (np.asarray(high) - np.asarray(low)) / y).mean())


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _rows_of(architectures: Sequence[Any]) -> list[NDArray[np.intp]]:
    names = np.asarray([str(a) for a in architectures])
    _, position = np.unique(names, return_inverse=True)
    return [np.flatnonzero(position == i) for i in range(position.max() + 1)]


def _pair(actual: ArrayLike, predicted: ArrayLike) -> tuple[Array, Array]:
    y, p = np.asarray(actual, dtype=float), np.asarray(predicted, dtype=float)
    if y.shape != p.shape or y.ndim != 1 or not len(y):
        raise ValueError(f"labels have shape {y.shape}, predictions {p.shape}")
    if not ((y > 0).all() and (p > 0).all()):
        raise ValueError("labels and predictions must be above 0")
    return y, p
