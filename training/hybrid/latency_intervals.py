"""The interval law of the default predictor, and how well it covers what it has not seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dippm.models.intervals import COVERAGE, SEEN, UNSEEN, IntervalLaw, interval_features
from training.evaluation.held_out import HeldOut
from training.evaluation.intervals import conformal_quantile, error_size
from training.evaluation.metrics import coverage, relative_width
from training.hybrid.examples import Examples

Floats = NDArray[np.float64]
FEWEST_ROWS = 20


def interval_rows(
    examples: Examples, held: HeldOut, group: str, *, operators: bool = False
) -> pd.DataFrame:
    """Return what the law is fitted on: rows of whole models that were held out.

    Args:
        examples: all rows.
        held: with the columns "spread" and "host_share" besides those of every `HeldOut`.
        group: of these rows.
        operators: whether what is no whole model is described, too; no law is fitted on it.
    """
    rows = held.rows
    if not operators:
        rows = rows[[examples.rows[i].is_model for i in rows["position"]]]
    described = []
    for row in rows.itertuples():
        example = examples.rows[row.position]
        features = interval_features(
            row.spread,
            row.host_share,
            0.0,
            example.mode == "compiled",
            float(examples.launches[row.position]),
        )
        described.append(features)
    sizes = Counter(examples.rows[i].table for i in rows["position"])
    return rows.assign(
        group=group,
        features=described,
        gpu=[examples.rows[i].device.name for i in rows["position"]],
        weight=[sizes[examples.rows[i].table] ** -0.5 for i in rows["position"]],
        log_error=np.log(rows["predicted latency_ms"] / rows["latency_ms"]),
    )


def fit_intervals(rows: pd.DataFrame, level: float = COVERAGE) -> IntervalLaw:
    """Fit the law on rows of both groups; its intervals hold with probability `level`."""
    features = np.array(rows["features"].tolist())
    log_error, weight = rows["log_error"].to_numpy(), rows["weight"].to_numpy()
    coefficients = error_size(features, log_error, weight)
    scores = np.abs(log_error) / np.exp(features @ coefficients)
    quantile = {}
    for group in (SEEN, UNSEEN):
        mine = (rows["group"] == group).to_numpy()
        chosen = mine if mine.sum() >= FEWEST_ROWS else np.ones(len(rows), bool)
        quantile[group] = conformal_quantile(scores[chosen], weight[chosen], level)
    quantile[UNSEEN] = max(quantile.values())
    return IntervalLaw(tuple(map(float, coefficients)), quantile)


def half_widths(rows: pd.DataFrame, others: pd.DataFrame, level: float = COVERAGE) -> Floats:
    """Return the log half widths of intervals by the law of other rows, shape (len(rows),)."""
    law = fit_intervals(others, level)
    return np.array(
        [law.half_width(*row) for row in zip(rows["features"], rows["group"], strict=True)]
    )


def covered(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return coverage and width of intervals of laws fitted without the fold they are tried on."""
    parts = []
    for (group, fold), mine in rows.groupby(["group", "fold"]):
        half = half_widths(mine, rows[(rows["group"] != group) | (rows["fold"] != fold)])
        predicted = mine["predicted latency_ms"].to_numpy()
        parts.append(mine.assign(low=predicted / np.exp(half), high=predicted * np.exp(half)))
    every = pd.concat(parts)
    lines = []
    for group, of_group in every.groupby("group"):
        families = _coverages(of_group, "family_id")
        gpus = _coverages(of_group, "gpu")
        lines += [
            {"rows": f"{group}, {what}", **line}
            for what, line in (
                ("all", _line(of_group)),
                *((f"GPU {name}", line) for name, line in gpus),
                *((f"family {name}", line) for name, line in families[:5]),
            )
        ]
    return lines


def _coverages(rows: pd.DataFrame, by: str) -> list[tuple[str, dict[str, Any]]]:
    found = [(str(name), _line(part)) for name, part in rows.groupby(by)]
    return sorted(found, key=lambda item: float(item[1]["coverage"]))


def _line(rows: pd.DataFrame) -> dict[str, Any]:
    predicted = rows["predicted latency_ms"]
    half = 100 * (rows["high"] / predicted - 1)
    return {
        "n": len(rows),
        "coverage": round(100 * coverage(rows["latency_ms"], rows["low"], rows["high"]), 1),
        "median_half_width": round(float(half.median()), 1),
        "mean_width": round(relative_width(rows["latency_ms"], rows["low"], rows["high"]), 1),
    }
