"""AIConfigurator: BF16 and FP8 matrix products and attention, replayed as CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
FILES = {
    "gemm.parquet": "gemm",
    "context_attention.parquet": "context_attention",
    "generation_attention.parquet": "generation_attention",
    "encoder_attention.parquet": "encoder_attention",
}


def read(folder: Path) -> pd.DataFrame:
    """Return all operators; several framework versions of one shape are separate rows.

    Shape columns are null where they do not apply. `num_kv_heads` 0 means the same as heads.
    """
    parts = [pd.read_parquet(folder / file).assign(operator=op) for file, op in FILES.items()]
    table = pd.concat(parts, ignore_index=True)
    shapes = ["m", "n", "k", "isl", "num_heads", "num_kv_heads", "head_dim", "window_size", "step"]
    table = table.astype(dict.fromkeys(shapes, "Int64"))
    dtype = table["gemm_dtype"].fillna(table["attn_dtype"])
    return tidy(
        "aiconfigurator",
        table,
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "K",
            "precision": dtype.map(PRECISION),
            "mode": "eager",
            "phase": "inference",
            "software": table["framework"] + " " + table["version"],
            "operator": table["operator"],
            "n_gpus": 1,
            "batch": table["batch"].astype("Int64"),
            "latency_ms": table["latency_ms"],
            "power_w": table["power_w"],
        },
    )


SOURCES = (
    Source(
        "aiconfigurator",
        "aiconfigurator",
        "ai-dynamo/aiconfigurator, system performance tables",
        "Apache-2.0",
        "K",
        tuple(FILES),
        read,
    ),
)
