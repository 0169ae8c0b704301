"""Stable Diffusion as run by users of its web interfaces: one call of its U-Net, on many GPUs.

A report is one user's run: the images per batch, and steps times images divided by wall time. Slow
ones come from busy, cold or misconfigured machines, so the label of a GPU and batch is a quantile
of its reports, and a row exists only if there are enough of them.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.measured.stable_diffusion import PIXELS_PER_PLACE
from dataset.measured.table import Source, tidy
from dippm.devices import Device, find
from dippm.errors import UnknownNameError

FILE = "images_per_second.csv"
IMAGE_SIZE = 512
MODEL = f"sd:unet-v1@{IMAGE_SIZE // PIXELS_PER_PLACE}"
FUSED = "xformers|sdp|scaled-dot-product"
"""Attention settings that name a fused kernel; "automatic" is the software's choice."""
OFFLOADED = "medvram|lowvram|lowram"
"""Settings that move parts of the model between host and GPU during a run."""
CAPACITY_TOLERANCE = 0.1
"""Tolerance of a card's capacity; beyond it the chip is another one, or modified."""
QUANTILE = 0.8
"""Quantile of the reported rates, between the 75th and the 90th percentile."""
FEWEST_REPORTS = 10
PRECISION = "fp16"
"""Precision for half weights under autocast with norms in fp32, which has no exact equivalent:
"amp" would also cast the 860 million weights on each call."""
CALLS_AT_ONCE = 2
"""With guidance an image is denoised with and without its text, in one batch."""


def read(folder: Path) -> pd.DataFrame:
    """Return one row for each GPU and batch, `batch` being that of the U-Net.

    Stable Diffusion 1.x in half precision, 512 x 512, fused attention, eager. `latency_ms` is the
    wall time of a run divided by its steps, so it includes text encoder, decoder and scheduler;
    `reports` counts the runs, and `latency_ms_p75`, `latency_ms_p90` are the ends of the range of
    plausible quantiles.
    """
    reports = _comparable(pd.read_csv(folder / FILE, low_memory=False))
    rates = 1000 / reports["unet_call_ms"]
    groups = rates.groupby([reports["gpu"], reports["batch"]])
    columns = {"latency_ms": QUANTILE, "latency_ms_p75": 0.75, "latency_ms_p90": 0.9}
    table = pd.DataFrame({name: 1000 / groups.quantile(q) for name, q in columns.items()})
    table = table.assign(reports=groups.size())
    table = table[table["reports"] >= FEWEST_REPORTS].reset_index()
    return tidy(
        "sd_webui",
        table.rename(columns={"batch": "images"}).drop(columns=["gpu", "latency_ms"]),
        {
            "gpu": table["gpu"],
            "timer": "W",
            "precision": PRECISION,
            "mode": "eager",
            "layout": "nchw",
            "phase": "inference",
            "model": MODEL,
            "n_gpus": 1,
            "batch": CALLS_AT_ONCE * table["batch"],
            "latency_ms": table["latency_ms"],
        },
    )


def _comparable(reports: pd.DataFrame) -> pd.DataFrame:
    """Return the reports of one network under one set of conditions, with the catalogue's names."""
    attention = reports["attention"].fillna("").str.casefold()
    kept = reports[
        (reports["model_family_guess"] == "sd1.x")
        & (reports["weights_dtype"] == "float16")
        & (reports["autocast"] == "autocast")
        & reports["width"].fillna(IMAGE_SIZE).eq(IMAGE_SIZE)
        & reports["height"].fillna(IMAGE_SIZE).eq(IMAGE_SIZE)
        & reports["compile"].fillna("none").eq("none")
        & attention.str.contains(FUSED)
        & ~attention.str.contains(OFFLOADED)
    ]
    found = {name: device for name in kept["gpu"].unique() if (device := _match_catalogue(name))}
    kept = kept[kept["gpu"].isin(found)]
    capacity = kept["gpu"].map({name: device.memory_mb for name, device in found.items()})
    ratio = 1024 * kept["gpu_mem_gb"] / capacity
    kept = kept[ratio.between(1 - CAPACITY_TOLERANCE, 1 + CAPACITY_TOLERANCE)]
    return kept.assign(gpu=kept["gpu"].map({name: device.name for name, device in found.items()}))


def _match_catalogue(name: str) -> Device | None:
    try:
        return find(name)
    except UnknownNameError:
        return None


SOURCES = (
    Source(
        "sd_webui",
        "sd_webui",
        "vladmandic/sd-extension-system-info, pages/benchmark-raw.json",
        "MIT",
        "W",
        (FILE,),
        read,
    ),
)
