"""The interval law of the default predictor, and how well it covers what it has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dataset.join.latency_splits import SPLITS
from dippm.estimate.models.intervals import COVERAGE, GROUPS, UNSEEN, IntervalLaw
from dippm.estimate.models.targets import two_sided
from training.evaluation.held_out import HeldOut
from training.evaluation.intervals import conformal_quantile, error_size
from training.evaluation.metrics import coverage, relative_width
from training.hybrid.rows.examples import Row

Floats = NDArray[np.float64]
FEWEST_ROWS = 20
TEACHING = ("L", "S0", "S1", "S2-10", "S3a")
"""Splits that teach the law, those of them that were fitted."""
SLACK = 0.05
"""How much less often than promised intervals may hold on the worst split of a group."""
PARTS_OF = {"S0": 5}
"""In how many parts a split of one fold is tried, each by a law that did not see it."""
LISTED = ("L", "S2-10", "S3a")
"""Splits whose GPUs and worst families are listed."""


def interval_law_rows(known: Sequence[Row], held_out_sets: Mapping[str, HeldOut]) -> pd.DataFrame:
    """Return the held-out rows that the shipped interval law is fitted on."""
    parts = [
        interval_rows(known, held_out_sets[name]) for name in TEACHING if name in held_out_sets
    ]
    return pd.concat(parts, ignore_index=True)


def interval_rows(known: Sequence[Row], held: HeldOut, *, operators: bool = False) -> pd.DataFrame:
    """Return what the law is fitted on: rows of whole models that were held out.

    Args:
        known: all rows.
        held: answers of published folds, see `published_held_out`.
        operators: whether what is no whole model is described, too; no law is fitted on it.
    """
    rows = held.rows
    if not operators:
        rows = rows[[known[i].is_model for i in rows["position"]]]
    sizes = Counter(known[i].table for i in rows["position"])
    parts = PARTS_OF.get(held.split, 1)
    return rows.assign(
        split=held.split,
        part=[
            f"{fold} {crc32(str(architecture).encode()) % parts}"
            for fold, architecture in zip(rows["fold"], rows["arch_id"], strict=True)
        ],
        gpu=[known[i].device.name for i in rows["position"]],
        weight=[sizes[known[i].table] ** -0.5 for i in rows["position"]],
        log_error=np.log(rows["predicted latency_ms"] / rows["latency_ms"]),
    )


def fit_intervals(rows: pd.DataFrame, level: float = COVERAGE) -> IntervalLaw:
    """Fit the law on rows of both groups, all splits alike.

    Its intervals hold with probability `level` over the splits of a group, and on each of them with
    SLACK less at least. The errors that a new GPU adds are distinguished while the features
    are fitted, and left to the quantile of its group: no feature stands for it. Nor does the law
    answer for an unnamed host or laboratory: a prediction adds that, see `half_widths`.
    """
    features = np.array(rows["features"].tolist())
    beside = _beside_law(rows, level)
    log_error = np.sqrt(np.maximum(rows["log_error"].to_numpy() ** 2 - beside**2, 0.0))
    split = rows["split"].to_numpy()
    weight = (rows["weight"] / rows.groupby("split")["weight"].transform("sum")).to_numpy()
    new_gpu = (rows["group"] == UNSEEN).to_numpy(np.float64)
    *coefficients, _ = error_size(np.column_stack([features, new_gpu]), log_error, weight)
    scores = log_error / np.exp(features @ np.array(coefficients))

    def quantile(chosen: NDArray[np.bool_], level: float) -> float:
        return conformal_quantile(scores[chosen], weight[chosen], level)

    quantiles = {}
    for group in GROUPS:
        mine = (rows["group"] == group).to_numpy()
        chosen = mine if mine.sum() >= FEWEST_ROWS else np.ones(len(rows), bool)
        of_splits = [chosen & (split == name) for name in np.unique(split[chosen])]
        least = [quantile(s, level - SLACK) for s in of_splits if s.sum() >= FEWEST_ROWS]
        quantiles[group] = max([quantile(chosen, level), *least])
    return IntervalLaw(tuple(map(float, coefficients)), quantiles)


def half_widths(rows: pd.DataFrame, law_rows: pd.DataFrame, level: float = COVERAGE) -> Floats:
    """Return the log half widths of intervals, shape (len(rows),), with what no law answers for.

    Each part of the rows has them by a law of those `law_rows` that are not among it, whatever
    split they come from.
    """
    half = np.zeros(len(rows))
    for places in rows.groupby("part").indices.values():
        mine = rows.iloc[places]
        law = fit_intervals(law_rows[~law_rows["position"].isin(mine["position"])], level)
        pairs = zip(mine["features"], mine["group"], strict=True)
        half[places] = [law.half_width(*pair) for pair in pairs]
    return np.asarray(np.hypot(half, _beside_law(rows, level)))


def _beside_law(rows: pd.DataFrame, level: float) -> Floats:
    """Return the log half widths outside the law, at a level other than the answers'."""
    return np.asarray(rows["beside_law"].to_numpy() * two_sided(level) / two_sided(COVERAGE))


def covered(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return coverage and width of intervals of laws fitted without the rows they are tried on."""
    lines = []
    for split, mine in rows.groupby("split"):
        half = half_widths(mine, rows)
        predicted = mine["predicted latency_ms"].to_numpy()
        tried = mine.assign(low=predicted / np.exp(half), high=predicted * np.exp(half))
        found = [("all", _line(tried))]
        if split in LISTED:
            found += [(f"GPU {name}", line) for name, line in _coverages(tried, "gpu")]
            families = _coverages(tried, "family_id")[:5]
            found += [(f"family {name}", line) for name, line in families]
        lines += [{"rows": f"{SPLITS[split]}, {what}", **line} for what, line in found]
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
