"""Published power and energy of whole runs → our tables, one function per source."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from dataset.published.whole_models import Files, Tables

SPLITWISE_COLUMNS = {
    "model": "model",
    "hardware": "gpu",
    "tensor_parallel": "tp",
    "prompt_size": "prompt_tokens",
    "batch_size": "batch",
    "token_size": "output_tokens",
    "prompt_time": "prompt_ms",
    "token_time": "token_ms",
    "e2e_time": "e2e_ms",
    "peak_power": "peak_power_frac",
    "average_power": "avg_power_frac",
}
ZEUS_DEVICES = {
    "a40": "NVIDIA A40",
    "v100": "NVIDIA V100",
    "p100": "NVIDIA P100",
    "rtx6000": "NVIDIA Quadro RTX 6000",
}
ZEUS_SWEEP_COLUMNS = {
    "power_limit": "power_limit_w",
    "time_per_epoch": "time_per_epoch_s",
    "average_power": "avg_power_w",
}


def splitwise(files: Files) -> Tables:
    """Return time and power of requests; a power of zero means that none was read."""
    (path,) = files.values()
    table = pd.read_csv(path)[list(SPLITWISE_COLUMNS)].rename(columns=SPLITWISE_COLUMNS)
    fractions = ["peak_power_frac", "avg_power_frac"]
    table[fractions] = table[fractions].where(table[fractions] > 0)
    return {"perf_power.csv": table}


def zeus(files: Files) -> Tables:
    """Return epochs under power limits, and training windows at one limit each."""
    sweeps, windows = [], []
    for name, path in files.items():
        table = pd.read_csv(path)
        if "summary_power" in name:
            gpu = ZEUS_DEVICES[path.stem.removeprefix("summary_power_")]
            table.insert(0, "gpu", gpu)
            sweeps.append(table.rename(columns=ZEUS_SWEEP_COLUMNS))
        else:
            windows.append(_zeus_windows(path.stem, table))
    return {
        "nsdi23_power_limit_sweep.csv": pd.concat(sweeps, ignore_index=True),
        "power_limit_windows.csv": pd.concat(windows, ignore_index=True),
    }


def _zeus_windows(stem: str, table: pd.DataFrame) -> pd.DataFrame:
    """Return the windows of a file such as "A40+resnet18+gpu0,1,2,3", as means over its GPUs."""
    gpu, network, indices = stem.split("+")
    energy_j = table.filter(regex=r"gpu\d+_energy").mean(axis=1)
    limit = table["window_name"].str.extract(r"_(\d+)$")[0].astype("int64")
    return pd.DataFrame(
        {
            "gpu": f"NVIDIA {gpu}",
            "network": network,
            "n_gpus": len(indices.split(",")),
            "power_limit_w": limit,
            "elapsed_s": table["elapsed_time"].round(4),
            "energy_j_per_gpu_mean": energy_j.round(2),
            "avg_power_w": (energy_j.round(2) / table["elapsed_time"].round(4)).round(2),
        }
    )


RAPHISCHER_IMAGES = {"train": 1_281_167, "validation": 50_000}
BUSY_PERCENT = 80
"""Minimum utilisation of a GPU; below it the GPU waits for images."""


def raphischer(files: Files) -> Tables:
    """Return passes over ImageNet, sorted by conditions; the first run has its own format."""
    rows = []
    for path in files.values():
        for run in json.loads(path.read_text(encoding="utf-8")).values():
            for split, images in RAPHISCHER_IMAGES.items():
                rows.append(_raphischer_pass(run, split, images))
    order = ["backend", "model", "split", "source_run"]
    table = pd.DataFrame([row for row in rows if row]).sort_values(order, ignore_index=True)
    return {"rtx5000_imagenet_eval_energy.csv": table}


def _raphischer_pass(run: dict[str, Any], split: str, images: int) -> dict[str, Any] | None:
    """Return one row; None if the pass was not monitored."""
    first = "config" not in run
    done = run[split]
    watched = done and done["gpu_monitoring" if first else "monitoring_gpu"]
    if not watched:
        return None
    setting = done if first else run["config"]
    gpu = watched["0"]
    seconds, energy_j = gpu["duration" if first else "total_duration"], gpu["total_power_draw"]
    backend, busy = setting.get("backend", "tensorflow"), gpu["util.gpu"]["mean"]
    # TensorFlow reserves all memory in advance.
    used = gpu["memory.used"]["max"] if backend == "pytorch" else None
    return {
        "gpu": "NVIDIA Quadro RTX 5000",
        "source_run": "2022-01 first run"
        if first
        else "-".join(setting["timestamp"].split("_")[:3]),
        "backend": backend,
        "model": setting["model"],
        "split": split,
        "n_images": images,
        "batch": setting["batch_size"],
        "duration_s": round(seconds, 2),
        "ms_per_image": round(1e3 * round(seconds, 2) / images, 4),
        "gpu_energy_j": round(energy_j, 1),
        "gpu_energy_per_image_mj": round(1e3 * round(energy_j, 1) / images, 3),
        "gpu_power_mean_w": round(energy_j / seconds, 2),
        "gpu_power_max_w": gpu["power_usage"]["max"],
        "gpu_util_mean_pct": round(busy, 2),
        "gpu_bound": busy >= BUSY_PERCENT,
        "mem_util_mean_pct": round(gpu["util.memory"]["mean"], 2),
        "mem_used_max_mib": used and round(used / 2**20, 1),
        "params": done["results"]["model"]["params"],
    }
