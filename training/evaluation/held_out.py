"""Predictions for rows that did not train."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions of one predictor for every test row of a split.

    Attributes:
        predictor: name for people.
        split: for instance "S1".
        rows: "row_id", "arch_id", "family_id", "fold", and for each target T the columns T
            (measured) and "predicted T"; NaN where there is no label.
        seconds: of training.
    """

    predictor: str
    split: str
    rows: pd.DataFrame
    seconds: float
