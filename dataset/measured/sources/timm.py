"""timm: step times of about 1,450 vision models on three consumer GPUs.

Rows of CPUs are left out. One batch per model and file: the largest that fitted.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

ORIGIN = "huggingface/pytorch-image-models, folder results/"


def read_inference(folder: Path) -> pd.DataFrame:
    """Return forward passes under autocast, eager and compiled, nchw and nhwc."""
    return _read("timm_infer", folder / "infer.parquet", "inference")


def read_training(folder: Path) -> pd.DataFrame:
    """Return training steps (forward, backward, optimiser) under autocast."""
    return _read("timm_train", folder / "train.parquet", "train")


def _read(source: str, path: Path, phase: str) -> pd.DataFrame:
    table = pd.read_parquet(path)
    table = table[table["device_type"] == "gpu"]
    return tidy(
        source,
        table.drop(columns=["device_type", "step_ms", "compiled"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "W",
            "precision": table["precision"],
            "mode": table["compiled"].map({False: "eager", True: "compiled"}),
            "layout": table["layout"],
            "phase": phase,
            "software": "torch " + table["torch"] + ", cuda " + table["cuda"],
            "model": "timm:" + table["model"] + "@" + table["img_size"].astype(str),
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["step_ms"],
        },
    )


SOURCES = (
    Source("timm_infer", "timm", ORIGIN, "Apache-2.0", "W", ("infer.parquet",), read_inference),
    Source("timm_train", "timm", ORIGIN, "Apache-2.0", "W", ("train.parquet",), read_training),
)
