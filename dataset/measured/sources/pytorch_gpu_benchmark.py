"""pytorch-gpu-benchmark: 32 torchvision models at batch 12, host-to-device copy included."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

PRECISION = {"float": "fp32", "half": "fp16", "double": "fp64"}
TF32_GPUS = ("A100-40GB",)
IMAGE_SIZE = 224


def read(folder: Path) -> pd.DataFrame:
    """Return inference and training steps; "float" is TF32 on the A100, as its container was."""
    table = pd.read_csv(folder / "torchvision_bs12.csv")
    gpu = catalogue_names(table["gpu"])
    precision = table["dtype"].map(PRECISION)
    precision[(precision == "fp32") & gpu.isin(TF32_GPUS)] = "tf32"
    return tidy(
        "pytorch_gpu_benchmark",
        table.drop(columns=["dtype", "ms_median", "mode"]),
        {
            "gpu": gpu,
            "timer": "C",
            "precision": precision,
            "mode": "eager",
            "layout": "nchw",
            "phase": table["mode"],
            "model": "torchvision:" + table["model"] + f"@{IMAGE_SIZE}",
            "n_gpus": table["n_gpus"],
            "batch": table["batch_total"] // table["n_gpus"],
            "latency_ms": table["ms_median"],
        },
    )


SOURCES = (
    Source(
        "pytorch_gpu_benchmark",
        "pytorch_gpu_benchmark",
        "ryujaehun/pytorch-gpu-benchmark",
        "MIT",
        "C",
        ("torchvision_bs12.csv",),
        read,
    ),
)
