"""optimum-benchmark: transformers on an A100-SXM4-80GB, with device memory.

Each row of the table becomes up to two: `task` "forward" (one prefill pass) and "generate" (all
new tokens). The source counts memory in MB of 10⁶ bytes; `memory_mb` is in MiB as everywhere.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

MIB_PER_MB = 1e6 / 2**20
INFERENCE, TRAINING = "a100_80gb_inference.csv", "a100_80gb_llama_training.csv"


def read(folder: Path) -> pd.DataFrame:
    """Return forward passes, generations, and training steps (these with their data pipeline).

    A precision that a report does not name is null; `quantization` says how weights were stored.
    `allocated_mb` and `reserved_mb` are the allocator's view where it was reported.
    """
    inference = pd.read_csv(folder / INFERENCE)
    parts = [_task(inference, "forward"), _task(inference, "generate")]
    parts.append(_training(pd.read_csv(folder / TRAINING)))
    table = pd.concat(parts, ignore_index=True)
    return tidy(
        "optimum_benchmark",
        table,
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": table["task"].map({"forward": "W", "generate": "W", "train": "D"}),
            "precision": table["dtype"].map({"float16": "fp16", "float32": "fp32"}),
            "mode": table["torch_compile"]
            .astype("boolean")
            .fillna(False)
            .map({False: "eager", True: "compiled"}),
            "phase": table["task"].map(
                {"forward": "inference", "generate": "inference", "train": "train"}
            ),
            "software": "torch " + table["torch"].astype(str),
            "model": "hf:" + table["model"],
            "n_gpus": 1,
            "batch": table["batch"].astype("Int64"),
            "latency_ms": table["latency_ms"],
            "memory_mb": table["memory_mb"],
        },
    )


def _task(table: pd.DataFrame, task: str) -> pd.DataFrame:
    rows = table[table[f"{task}_latency_s"].notna()]
    kept = [c for c in rows if not c.startswith(("forward_", "generate_"))]
    return rows[kept].assign(
        task=task,
        latency_ms=rows[f"{task}_latency_s"] * 1000,
        memory_mb=rows[f"{task}_peak_memory_mb"] * MIB_PER_MB,
        allocated_mb=rows[f"{task}_mem_allocated_mb"] * MIB_PER_MB,
        reserved_mb=rows[f"{task}_mem_reserved_mb"] * MIB_PER_MB,
    )


def _training(table: pd.DataFrame) -> pd.DataFrame:
    step_ms = 1000 * table["batch"] / table["train_throughput_samples_s"]
    return table.assign(task="train", latency_ms=step_ms)


SOURCES = (
    Source(
        "optimum_benchmark",
        "optimum_benchmark",
        "huggingface/optimum-benchmark, example reports of 2023",
        "Apache-2.0",
        "W",
        (INFERENCE, TRAINING),
        read,
    ),
)
