"""Collected sets: folders written by `dataset.collect`, one per device.

`read` returns the rows as measured, failures included. `as_table` returns rows in the schema of
`dataset.measured.table`, like any other source.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import tidy
from dippm.devices import find
from dippm.errors import UnknownNameError
from dippm.measure.collected.rows import collected

DATA = Path(__file__).resolve().parents[1] / "data"
LICENCE = "CC-BY-4.0"
REPLACED = ["device", "channels_last", "framework"]


def folders(data: Path | None = None) -> tuple[Path, ...]:
    """Return the committed folders, one per device; `data` is `DATA` if None."""
    return tuple(sorted({path.parent for path in (data or DATA).glob("*/shard-*")}))


def read(folder: Path) -> pd.DataFrame:
    """Return all rows of a collected folder, with the columns of `dippm.measure.columns`.

    Raises:
        RowsNotFoundError: if there are no rows.
    """
    return collected(folder).rows


def as_table(rows: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return rows in the schema of `dataset.measured.table`; `row_id` stays the collector's."""
    models = rows["kind"] == "model"
    table = tidy(
        source,
        rows.drop(columns=REPLACED),
        {
            "gpu": rows["device"].map(_known_as),
            "timer": "W",
            "precision": rows["precision"],
            "mode": rows["mode"],
            "layout": rows["channels_last"].map({True: "nhwc", False: "nchw"}),
            "phase": rows["phase"],
            "software": rows["framework"].str.cat(", cuda " + rows["cuda"], na_rep="").str.strip(),
            "model": rows["model"].where(models, None),
            "operator": rows["family"].where(~models, None),
            "mig_profile": rows["mig_profile"],
            "n_gpus": 1,
            "batch": rows["batch"],
            "latency_ms": rows["latency_ms"],
            "power_w": rows["power_w"],
            "memory_mb": rows["memory_mb"],
        },
    )
    return table.assign(row_id=rows["row_id"].to_numpy(), device=rows["device"].to_numpy())


def _known_as(device: str) -> str:
    """Return the catalogue's name of a device, or its own name if unknown."""
    try:
        return find(device).name
    except UnknownNameError:
        return device
