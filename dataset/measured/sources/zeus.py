"""Zeus: power of training jobs under power limits; time per epoch includes the data loader."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

VARIANTS = {"NVIDIA V100": "V100-PCIe-16GB"}
"""GPU variants; the highest limit, 250 W, is that of the PCIe board."""
SWEEP, WINDOWS = "nsdi23_power_limit_sweep.csv", "power_limit_windows.csv"


def read(folder: Path) -> pd.DataFrame:
    """Return board power by power limit; there is no step time, so `latency_ms` is null."""
    sweep = pd.read_csv(folder / SWEEP).assign(table="sweep", n_gpus=1)
    windows = pd.read_csv(folder / WINDOWS).assign(table="windows")
    table = pd.concat([sweep, windows], ignore_index=True)
    return tidy(
        "zeus",
        table.drop(columns=["avg_power_w", "batch_size"]),
        {
            "gpu": catalogue_names(table["gpu"], VARIANTS),
            "timer": "D",
            "mode": "eager",
            "phase": "train",
            "model": "zeus:" + table["network"],
            "n_gpus": table["n_gpus"],
            "batch": table["batch_size"].astype("Int64"),
            "power_w": table["avg_power_w"],
        },
    )


SOURCES = (
    Source(
        "zeus",
        "zeus",
        "ml-energy/zeus, NSDI 2023 traces and profiles",
        "Apache-2.0",
        "D",
        (SWEEP, WINDOWS),
        read,
    ),
)
