"""The reference tables for comparing predictors, selected from the joined rows."""

from __future__ import annotations

import pandas as pd

REFERENCE = {
    "source": "timm_infer",
    "gpu": "RTX-3090",
    "software": "torch 2.4.0, cuda 12.4",
    "mode": "eager",
    "layout": "nchw",
}
"""Conditions of the reference table: 1,443 rows, one batch for each model and size."""

GPU_SOFTWARE = {
    "RTX-3090": "torch 2.4.0, cuda 12.4",
    "RTX-4090": "torch 2.4.0, cuda 12.4",
    "RTX-5090": "torch 2.9.1, cuda 13.0",
}


def reference_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the reference table, in a fixed order."""
    chosen = pd.Series(True, index=table.index)
    for column, value in REFERENCE.items():
        chosen &= table[column] == value
    return table[chosen].sort_values("row_id").reset_index(drop=True)


def gpu_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return one eager nchw table for each GPU of timm, with software of the same age."""
    recent = pd.Series(
        list(zip(table["gpu"], table["software"], strict=True)), index=table.index
    ).isin(GPU_SOFTWARE.items())
    chosen = recent & (table["source"] == "timm_infer") & (table["mode"] == "eager")
    chosen &= table["layout"] == "nchw"
    return table[chosen].sort_values("row_id").reset_index(drop=True)
