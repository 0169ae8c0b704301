"""FlagPerf: time and board power of 50 operators on an A100-SXM4-40GB."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "a100_40gb_op_time_power.csv"
CAPACITY_MB = 40 * 1024


def read(folder: Path) -> pd.DataFrame:
    """Return operators in two implementations; `impl` "flaggems" means Triton kernels.

    `power_w` is null where the measuring loop was too short for it (`power_reliable` false); the
    raw reading stays in `gpu_power_avg_w`. Phase "train" is a forward and a backward pass.
    """
    table = pd.read_csv(folder / FILE)
    precision = table["dtype"].str.lower()
    precision[table["fp32_matmul_mode"] == "TF32"] = "tf32"
    return tidy(
        "flagperf",
        table.drop(columns=["op", "pass"]),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "E",
            "precision": precision,
            "mode": "eager",
            "phase": table["pass"].map({"forward": "inference", "forward+backward": "train"}),
            "software": table["impl"],
            "operator": table["op"],
            "n_gpus": 1,
            "latency_ms": table["kernel_time_us"] / 1000,
            "power_w": table["gpu_power_avg_w"].where(table["power_reliable"]),
            "memory_mb": table["gpu_mem_max_pct"] / 100 * CAPACITY_MB,
        },
    )


SOURCES = (
    Source(
        "flagperf",
        "flagperf",
        "FlagOpen/FlagPerf, folder operation",
        "Apache-2.0",
        "E",
        (FILE,),
        read,
    ),
)
