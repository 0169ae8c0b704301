"""Simple predictors on the folds of a split, for several targets and mixed conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dataset.join.splits import Fold, Split
from training.evaluation.baselines import (
    Baseline,
    BoostedTrees,
    FlopsProportional,
    NearestNeighbour,
    Ridge,
    held_out_predictions,
)
from training.evaluation.held_out import HeldOut

CONDITIONS = ["precision", "layout"]


class MedianLabel:
    """The median label of the training rows, whatever the model. Worse than it is worthless."""

    def fit(self, rows: pd.DataFrame) -> None:
        """Take the median."""
        self.value = float(rows["latency_ms"].median())

    def predict(self, rows: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return it for every row."""
        return np.full(len(rows), self.value)


class PerCondition:
    """One predictor for each precision and layout, and one of all rows as a last resort."""

    def __init__(self, make: Callable[[], Baseline]) -> None:
        self.make = make

    def fit(self, rows: pd.DataFrame) -> None:
        """Fit all of them."""
        self.rest = self.make()
        self.rest.fit(rows)
        groups = list(rows.groupby(CONDITIONS))
        self.parts = {key: self.make() for key, _ in groups} if len(groups) > 1 else {}
        for key, part in groups if self.parts else ():
            self.parts[key].fit(part)

    def predict(self, rows: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Ask for each row the predictor of its conditions."""
        found = pd.Series(np.nan, index=rows.index)
        for key, part in rows.groupby(CONDITIONS):
            found[part.index] = self.parts.get(key, self.rest).predict(part)
        values: np.ndarray[Any, np.dtype[np.float64]] = found.to_numpy()
        return values


SIMPLE: Mapping[str, Callable[[], Baseline]] = {
    "median label": MedianLabel,
    "FLOPs-proportional": FlopsProportional,
    "nearest neighbour": NearestNeighbour,
    "ridge on totals": Ridge,
    "boosted trees on totals": lambda: BoostedTrees(lambda rows: np.ones(len(rows))),
}
"""By name; they read the label from the column "latency_ms", whichever target that is."""


def run_simple(split: Split, table: pd.DataFrame, targets: tuple[str, ...]) -> list[HeldOut]:
    """Return the held-out predictions of every simple predictor, fitted for each target alone."""
    found = []
    for name, make in SIMPLE.items():
        start = time.monotonic()
        rows = None
        for target in targets:
            predicted = _simple(make, split, table, target)
            rows = predicted if rows is None else rows.join(predicted[f"predicted {target}"])
        assert rows is not None
        found.append(HeldOut(name, split.name, rows, round(time.monotonic() - start, 1)))
    return found


def _simple(
    make: Callable[[], Baseline], split: Split, table: pd.DataFrame, target: str
) -> pd.DataFrame:
    labelled = table[table[target].notna()]
    known = set(labelled["row_id"])
    folds = tuple(
        Fold(f.name, *(tuple(r for r in p if r in known) for p in (f.test, f.validation)))
        for f in split.folds
    )
    kept = Split(
        split.name,
        split.keys,
        split.seed,
        split.data,
        split.families,
        tuple(r for r in split.rows if r in known),
        tuple(f for f in folds if f.test),
    )
    values, tested = held_out_predictions(
        lambda: PerCondition(make), labelled.assign(latency_ms=labelled[target]), kept
    )
    column = pd.Series(values, index=tested["row_id"])
    rows = table.set_index("row_id", drop=False)
    folds_of = {row: fold.name for fold in split.folds for row in fold.test}
    rows = rows.loc[list(folds_of)].assign(fold=pd.Series(folds_of))
    return rows.assign(**{f"predicted {target}": column})
