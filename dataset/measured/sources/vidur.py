"""Vidur: FP16 kernels of LLM blocks on A100-80GB, H100 and A40; resolution 1 µs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

VARIANTS = {"a100": "A100-80GB", "h100": "H100-SXM-80GB"}
"""Our choice for the files' 80 GB cards of unknown form factor."""


def read(folder: Path) -> pd.DataFrame:
    """Return projections, norms and activations, then attention with its cache sizes."""
    parts = [pd.read_parquet(folder / f"{name}_ops.parquet") for name in ("mlp", "attention")]
    table = pd.concat(parts, ignore_index=True)
    whole = table.select_dtypes("number").columns.difference(
        ["median_ms", "min_ms", "max_ms", "mean_ms", "std_ms"]
    )
    table = table.astype(dict.fromkeys(whole, "Int64"))
    return tidy(
        "vidur",
        table.rename(columns={"model": "shapes_of"}).drop(columns=["op", "median_ms"]),
        {
            "gpu": catalogue_names(table["gpu"], VARIANTS),
            "timer": "K",
            "precision": "fp16",
            "mode": "eager",
            "phase": "inference",
            "operator": table["op"],
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["median_ms"],
        },
    )


SOURCES = (
    Source(
        "vidur",
        "vidur",
        "microsoft/vidur, folder data/profiling",
        "MIT",
        "K",
        ("mlp_ops.parquet", "attention_ops.parquet"),
        read,
    ),
)
