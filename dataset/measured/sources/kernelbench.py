"""KernelBench levels 1 and 2: single operators and short chains, eager and compiled.

FP32 inputs under PyTorch's default flags: matrix products in IEEE FP32, convolutions in TF32 on
GPUs that have it (`convolutions_tf32`). Modules ran in training mode without gradients, so batch
norms use batch statistics. `dataset.measured.traces` makes a module of the trace of a row.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy
from dippm.devices import find

TIMINGS, PROBLEMS = "timings_level1_2.parquet", "problems.json"
MODES = {
    "eager": "eager",
    "compile_inductor_default": "compiled",
    "compile_inductor_max-autotune-no-cudagraphs": "compiled",
}


def read(folder: Path) -> pd.DataFrame:
    """Return all timings; `mode` is null for modes that copy their inputs on every call."""
    table = pd.read_parquet(folder / TIMINGS)
    gpu = catalogue_names(table["gpu"])
    has_tf32 = {name: "tf32" in find(name).peak_tflops for name in gpu.unique()}
    return tidy(
        "kernelbench",
        table.drop(columns=["mean_ms"]).assign(convolutions_tf32=gpu.map(has_tf32)),
        {
            "gpu": gpu,
            "timer": "E",
            "precision": "fp32",
            "mode": table["config"].map(MODES),
            "layout": "nchw",
            "phase": "inference",
            "software": table["run"],
            "model": "kernelbench:" + table["trace_id"],
            "n_gpus": 1,
            "latency_ms": table["mean_ms"],
        },
    )


SOURCES = (
    Source(
        "kernelbench",
        "kernelbench",
        "ScalingIntelligence/KernelBench, folder results/timing with its history",
        "MIT",
        "E",
        (TIMINGS, PROBLEMS),
        read,
    ),
)
