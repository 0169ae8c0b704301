"""Collected rows that are not labels, with their reasons."""

from __future__ import annotations

import pandas as pd

from dippm.measure.collected.labels import why_not_used


def exclusions(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the reason why each row is not a label; null for labels.

    Repeats are excluded too: they serve for the noise floor, and would leak on both sides of a
    split. The first usable row of a configuration is kept.
    """
    reasons = pd.Series([why_not_used(row) for row in rows.to_dict("records")], dtype="object")
    reasons.index = rows.index
    usable = rows[reasons.isna()].sort_values(["repeat", "measured_at"], kind="stable")
    again = usable.index[usable.duplicated(["configuration_id", "device"])]
    reasons.loc[again] = "repeat of a configuration: for the noise floor only"
    return reasons
