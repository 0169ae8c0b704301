"""EC-NAS: training steps of CNNs of NAS-Bench-101 on a Quadro RTX 6000, and the board's power.

Steps are wall time over four epochs with the input pipeline; power is that of epochs 2 to 4, the
processor's part taken off. `power_w` of the whole run (`gpu_avg_power_W`) counts start and test
passes, so it is a column of the source's own.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured import nasbench101
from dataset.measured.table import Source, catalogue_names, tidy

FILE = "nb101_training_power.csv"
POWER = "phase_epochs2to4_gpu_power_W_estimate"


def read(folder: Path) -> pd.DataFrame:
    """Return training steps; `model` names the whole cell, see `dataset.measured.nasbench101`."""
    table = pd.read_csv(folder / FILE)
    models = [nasbench101.key_of(record) for record in table.to_dict("records")]
    return tidy(
        "ecnas",
        table.drop(columns=[POWER, "ms_per_step"]).assign(params_M=table["trainable_params"] / 1e6),
        {
            "gpu": catalogue_names(table["gpu"]),
            "timer": "D",
            "precision": "fp32",
            "mode": "eager",
            "layout": "nhwc",
            "phase": "train",
            "software": "tensorflow",
            "model": models,
            "n_gpus": 1,
            "batch": table["batch"],
            "latency_ms": table["ms_per_step"],
            "power_w": table[POWER],
        },
    )


SOURCES = (
    Source(
        "ecnas",
        "ecnas",
        "saintslab/EC-NAS-Bench",
        "MIT",
        "D",
        (FILE,),
        read,
    ),
)
