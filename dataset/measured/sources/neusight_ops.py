"""NeuSight: single FP32 operators on six data-centre GPUs.

What the kernels were and how they were launched is a result of the measurement, so those columns
are left out.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILES = ("bmm", "linear", "conv", "elementwise", "softmax", "layernorm")
SHAPE_COLUMNS = (
    "B",
    "M",
    "N",
    "K",
    "H",
    "in_channels",
    "out_channels",
    "kernel_size",
    "input_size",
    "stride",
    "padding",
)


def read(folder: Path) -> pd.DataFrame:
    """Return all operators; shape columns as in `dataset.measured.operators`, null where unused.

    `published_split` keeps the source's own train or test mark: its test shapes are those of real
    models.
    """
    tables = [pd.read_parquet(folder / f"{name}.parquet") for name in FILES]
    kept = ["op", "gpu", "split", "latency_ms", *SHAPE_COLUMNS]
    tables = [table[[c for c in kept if c in table.columns]] for table in tables]
    table = pd.concat(tables, ignore_index=True)
    table = table.astype(dict.fromkeys(SHAPE_COLUMNS, "Int64"))
    return tidy(
        "neusight_ops",
        table.rename(columns={"split": "published_split"}).drop(columns=["op"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "E",
            "precision": "fp32",
            "mode": "eager",
            "phase": "inference",
            "software": "torch 2.1.0, cuda 12.1",
            "operator": table["op"],
            "n_gpus": 1,
            "latency_ms": table["latency_ms"],
        },
    )


SOURCES = (
    Source(
        "neusight_ops",
        "neusight_ops",
        "sitar-lab/NeuSight, ASPLOS 2025 artefact",
        "MIT",
        "E",
        tuple(f"{name}.parquet" for name in FILES),
        read,
    ),
)
