"""MIGPerf: latency and framebuffer memory on MIG slices of an A100 80GB."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "a100_80gb_mig.csv"


def read(folder: Path) -> pd.DataFrame:
    """Return inference and training steps of three models on four slices.

    The precision was not recorded: "fp32" is PyTorch's default, under which convolutions may
    still have run in TF32. `memory_mb` includes the context of the process.
    """
    table = pd.read_csv(folder / FILE)
    return tidy(
        "migperf",
        table,
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "W",
            "precision": "fp32",
            "mode": "eager",
            "phase": table["mode"],
            "model": "migperf:" + table["model"],
            "mig_profile": table["mig_profile"],
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["latency_ms"],
            "memory_mb": table["fb_used_mib"],
        },
    )


SOURCES = (
    Source("migperf", "migperf", "MLSysOps/MIGProfiler (MIGPerf)", "MIT", "W", (FILE,), read),
)
