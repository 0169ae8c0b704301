"""ImageNet evaluation on a Quadro RTX 5000: energy and power of CNNs, input pipeline included.

Only rows with `gpu_bound` are informative about the GPU itself.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "rtx5000_imagenet_eval_energy.csv"


def read(folder: Path) -> pd.DataFrame:
    """Return passes over a data set; `latency_ms` is the mean wall time of a batch."""
    table = pd.read_csv(folder / FILE)
    return tidy(
        "raphischer",
        table.drop(columns=["gpu_power_mean_w", "mem_used_max_mib"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "D",
            "precision": "fp32",
            "mode": "eager",
            "phase": "inference",
            "software": table["backend"],
            "model": "raphischer:" + table["model"],
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["ms_per_image"] * table["batch"],
            "power_w": table["gpu_power_mean_w"],
            "memory_mb": table["mem_used_max_mib"],
        },
    )


SOURCES = (
    Source(
        "raphischer",
        "raphischer",
        "raphischer/imagenet-energy-efficiency (ECML PKDD 2022)",
        "MIT",
        "D",
        (FILE,),
        read,
    ),
)
