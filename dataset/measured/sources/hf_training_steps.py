"""Training steps in half precision with decomposed or fused attention, on two GPUs.

The model pages state neither how a step was timed nor whether it updated the parameters. Peaks are
those of weights and gradients alone, so there was no optimizer state. `allocated_mb` is the peak of
torch's allocator, without the context, so `memory_mb` is null.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "attention.csv"
GPUS = {
    "rtx3080ti-16GB": "RTX-3080-Ti-Laptop",
    "GeForce RTX 2060-8GB": "RTX-2060-Super",
    "NVIDIA GeForce RTX 2060-8GB": "RTX-2060-Super",
}
"""Our choice by memory: the desktop card has 12 GB, the plain RTX 2060 has 6 or 12."""


def read(folder: Path) -> pd.DataFrame:
    """Return forward and backward passes; `model` is the page's name if it has no checkpoint."""
    table = pd.read_csv(folder / FILE)
    return tidy(
        "hf_training_steps",
        table.drop(columns=["peak_mem_MB"]).assign(allocated_mb=table["peak_mem_MB"]),
        {
            "gpu": catalogue_names(table["gpu"], GPUS),
            "timer": "W",
            "precision": table["precision"].map({"float16": "fp16"}),
            "mode": "eager",
            "phase": "train",
            "software": "torch " + table["torch"],
            "model": "hf:" + table["model_id"].fillna(table["doc"]),
            "n_gpus": 1,
            "batch": table["batch"].astype(int),
            "latency_ms": table["latency_ms"],
        },
    )


SOURCES = (
    Source(
        "hf_training_steps",
        "hf_training_steps",
        "huggingface/transformers, history of docs/source/en/model_doc",
        "Apache-2.0",
        "W",
        (FILE,),
        read,
    ),
)
