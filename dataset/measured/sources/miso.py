"""MISO: training steps on MIG slices of an A100 40GB, data loader included.

For ratios between slices only, never for absolute time.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "mig_training_step.csv"


def read(folder: Path) -> pd.DataFrame:
    """Return the median step of eight workloads; precision was not recorded."""
    table = pd.read_csv(folder / FILE)
    return tidy(
        "miso",
        table.drop(columns=["step_ms_median"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "D",
            "mode": "eager",
            "phase": "train",
            "model": "miso:" + table["workload"],
            "mig_profile": table["mig_profile"],
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["step_ms_median"],
        },
    )


SOURCES = (
    Source("miso", "miso", "boringlee24/socc22-miso (SoCC 2022)", "MIT", "D", (FILE,), read),
)
