"""HW-GPT-Bench: kernel time of one forward pass of GPT models on eight GPUs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

VARIANTS = {
    "a100": "A100-40GB",
    "v100": "V100-SXM2-32GB",
    "p100": "P100-PCIe-16GB",
    "h100": "H100-SXM-80GB",
    "rtx2080": "RTX-2080-Ti",
    "rtx3080": "RTX-3080",
}
"""GPU variants for the families that the source names, as its power readings suggest."""

FP16 = frozenset({"v100", "p100", "rtx2080", "rtx3080"})
"""GPUs that ran under autocast to fp16, by the settings file of each GPU; the rest ran bf16.

V100 and 2080 Ti reach two to three times their fp32 peak here, which bf16 cannot on them."""


def read(folder: Path) -> pd.DataFrame:
    """Return forward passes, with the columns of the architecture.

    `power_w` belongs to another run (batch 8): never multiply it by `latency_ms`. `energy_j` and
    `energy_run_ms` describe that run.
    """
    latency = pd.read_parquet(folder / "latency.parquet")
    archs = pd.read_parquet(folder / "archs.parquet")
    table = latency.merge(archs, on="arch_id", how="left", validate="many_to_one")
    return tidy(
        "hwgpt",
        table,
        {
            "gpu": catalogue_names(table["gpu"], VARIANTS),
            "timer": "K",
            "precision": table["gpu"].isin(FP16).map({True: "amp", False: "amp-bf16"}),
            "mode": "eager",
            "phase": "inference",
            "model": "hwgpt:" + table["arch_id"].astype(str),
            "n_gpus": 1,
            "batch": table["batch_inferred"],
            "latency_ms": table["latency_ms"],
            "power_w": table["power_w"],
        },
    )


SOURCES = (
    Source(
        "hwgpt",
        "hwgpt",
        "automl/HW-GPT-Bench, raw measurements of May 2024",
        "Apache-2.0",
        "K",
        ("archs.parquet", "latency.parquet"),
        read,
    ),
)
