"""Which collected rows are no label."""

from __future__ import annotations

import pandas as pd

from dippm.measure.collected.labels import why_not_used


def exclusions(rows: pd.DataFrame) -> pd.Series[str]:
    """Return why each row is no label; null for rows that are.

    A repeat is left out too: it is there for the noise floor, and on both sides of a split it
    would leak. The first usable row of a configuration stays.
    """
    reasons = pd.Series([why_not_used(row) for row in rows.to_dict("records")], dtype="object")
    reasons.index = rows.index
    usable = rows[reasons.isna()].sort_values(["repeat", "measured_at"], kind="stable")
    again = usable.index[usable.duplicated(["configuration_id", "device"])]
    reasons.loc[again] = "repeat of a configuration: for the noise floor only"
    return reasons
