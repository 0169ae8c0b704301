"""ParvaGPU: seven torchvision networks over batch on slices of an A100, alone and shared.

`processes_mps` clients of one MPS server shared a slice, each with the model and batch of the row:
1 is a model alone.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "a100_mig_mps.csv"
NAMES = {"inceptionv3": "inception_v3", "mobilenetv2": "mobilenet_v2"}
"""Names that torchvision spells differently."""
PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
"""MIG profile by compute slices. All seven are the GPU in MIG mode, with 98 of its 108 SMs."""
NOT_AS_NAMED = ("throughput_per_s_total", "latency_ms_from_throughput")
IMAGE_SIZE = 224
"""Image size of every network, including Inception."""


def read(folder: Path) -> pd.DataFrame:
    """Return forward passes; `latency_ms` is that of each process.

    Its container computes in TF32 throughout. The passes ran without `torch.no_grad`, so they kept
    the results for a backward pass.

    The table's total is the throughput of one process: the batch divided by it is the latency that
    upstream printed, independent of the number of processes, by which its scheduler multiplies. So
    the table's latency column is too large by that number.
    """
    table = pd.read_csv(folder / FILE)
    table = table[table["status"] == "ok"]
    return tidy(
        "parvagpu",
        table.drop(columns=[*NOT_AS_NAMED, "latency_ms_printed", "status"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "C",
            "precision": "tf32",
            "mode": "eager",
            "layout": "nchw",
            "phase": "inference",
            "software": "torch 1.11",
            "model": "torchvision:" + table["model"].replace(NAMES) + f"@{IMAGE_SIZE}",
            "mig_profile": table["mig_slices"].map(PROFILES),
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["latency_ms_from_throughput"] / table["processes_mps"],
        },
    )


SOURCES = (
    Source(
        "parvagpu",
        "parvagpu",
        "MunQ-Lee/ParvaGPU_SC24, prof_data (SC 2024)",
        "MIT",
        "C",
        (FILE,),
        read,
    ),
)
