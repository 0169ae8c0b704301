"""DeepBench: products, convolutions and recurrent layers by cuBLAS and cuDNN, on six GPUs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy

FILE = "operators.csv"
GPUS = {"V100-SXM2 (DGX-1)": "V100-SXM2-16GB", "P100": "P100-PCIe-16GB"}
"""Our choice for ambiguous names: the variants share chip and memory, at similar clocks."""
NOT_CATALOGUED = ("M40",)
"""Maxwell GPUs, which PyTorch no longer supports."""
HALF_STORAGE = "fp16 storage, fp32 math"
EIGHT_BITS = "int8 (gemm, conv); fp32 rnn"
PRECISION = {"fp32": "fp32-ieee", "fp16 (fp32 accumulate)": "fp16", HALF_STORAGE: "fp16"}
SHAPE_COLUMNS = (
    "m", "n", "k", "W", "H", "C", "N", "K", "S", "R",
    "pad_w", "pad_h", "stride_w", "stride_h", "hidden", "timesteps",
)  # fmt: skip


def read(folder: Path) -> pd.DataFrame:
    """Return forward passes; shape columns are null where they do not apply.

    Products write (m, n) and sum over k; a convolution has K filters of R by S on N images of C by
    H by W. `bwd_input_ms` and `bwd_weight_ms` are the times of its gradients. Precision is null
    for the P100 in half precision except products: those run at the fp32 rate of the data sheet,
    convolutions at up to twice that rate.
    """
    table = pd.read_csv(folder / FILE)
    table = table[~table["gpu"].isin(NOT_CATALOGUED)]
    table = table.astype(dict.fromkeys(SHAPE_COLUMNS, "Int64"))
    recurrent = table["op"].str.startswith("rnn")
    precision = table["precision"].map(PRECISION)
    precision[table["precision"] == EIGHT_BITS] = "int8"
    precision[(table["precision"] == EIGHT_BITS) & recurrent] = "fp32-ieee"
    precision[(table["precision"] == HALF_STORAGE) & (table["op"] != "gemm")] = None
    return tidy(
        "deepbench",
        table.drop(columns=["op", "fwd_ms"]),
        {
            "gpu": catalogue_names(table["gpu"], GPUS),
            "timer": "K",
            "precision": precision,
            "mode": "eager",
            "phase": "inference",
            "operator": table["op"],
            "n_gpus": 1,
            "latency_ms": table["fwd_ms"],
        },
    )


SOURCES = (
    Source(
        "deepbench",
        "deepbench",
        "baidu-research/DeepBench, results",
        "Apache-2.0",
        "K",
        (FILE,),
        read,
    ),
)
