"""Published times of whole models → our tables, one function per source.

Files come in the order of `sources.toml`, and rows in the order of the files: row ids, and with
them the published splits, are positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

Files = Mapping[str, Path]
"""Local path of each file by its path in the upstream repository."""
Tables = dict[str, pd.DataFrame]
"""Rows of each of our files by name."""

TIMM_DEVICES = {
    "rtx3090": "NVIDIA GeForce RTX 3090",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "4090": "NVIDIA GeForce RTX 4090",
    "5090": "NVIDIA GeForce RTX 5090",
    "i9_10940x": "Intel Core i9-10940X",
    "i7_12700h": "Intel Core i7-12700H",
}
TIMM_COLUMNS = {
    "batch_size": "batch",
    "img_size": "img_size",
    "step_time": "step_ms",
    "samples_per_sec": "samples_per_s",
}


def timm(files: Files) -> Tables:
    """Return inference and training; file names state how their rows were measured."""
    parts: dict[str, list[pd.DataFrame]] = {"infer": [], "train": []}
    for name, path in files.items():
        phase, precision, layout, torch, *rest = Path(name).stem.split("-")[1:]
        cpu, compiled = rest[0] == "cpu", rest[-1] == "dynamo"
        device, table = TIMM_DEVICES[rest[1]], pd.read_csv(path)
        table = table.dropna(subset=[f"{phase}_step_time"])
        part = pd.DataFrame(
            {
                "gpu": device,
                "device_type": "cpu" if cpu else "gpu",
                "precision": precision,
                "layout": layout,
                "torch": _version(torch.removeprefix("pt")),
                "cuda": "" if cpu else f"{rest[0][2:4]}.{rest[0][4:]}",
                "compiled": compiled,
                "model": table["model"],
                **{ours: table[f"{phase}_{theirs}"] for theirs, ours in TIMM_COLUMNS.items()},
                "params_M": table["param_count"],
            }
        )
        if phase == "infer":
            part["gmacs_per_image"] = table.get("infer_gmacs")
            part["macts_M_per_image"] = table.get("infer_macts")
        parts[phase].append(part.astype({"batch": "int64", "img_size": "int64"}))
    return {f"{phase}.parquet": pd.concat(p, ignore_index=True) for phase, p in parts.items()}


def _version(digits: str) -> str:
    """Return the release for digits: 1.13 for 113, 2.4.0 for 240."""
    return f"1.{digits[1:]}" if digits.startswith("1") else ".".join(digits)


TORCHVISION_DEVICES = {
    "A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "GeForce GTX 1080 Ti": "NVIDIA GeForce GTX 1080 Ti",
    "GeForce RTX 2080 Ti": "NVIDIA GeForce RTX 2080 Ti",
    "TITAN RTX": "NVIDIA TITAN RTX",
    "TITAN V": "NVIDIA TITAN V",
    "TITAN Xp": "NVIDIA TITAN Xp",
}
TORCHVISION_BATCH = 12
TORCHVISION_FILE = re.compile(
    r"(?P<gpu>.*?)(_(?P<gpus>\d)_gpus_)?_(?P<dtype>double|float|single|half)"
    r"_model_(?P<mode>inference|train)(ing)?_benchmark"
)


def pytorch_gpu_benchmark(files: Files) -> Tables:
    """Return one row per model, from files with a column per model and a row per repetition."""
    parts = []
    for path in files.values():
        named = TORCHVISION_FILE.fullmatch(path.stem)
        if named is None:
            raise ValueError(f"a name of another form: {path.name}")
        times, n_gpus = pd.read_csv(path), int(named["gpus"] or 1)
        part = pd.DataFrame(
            {
                "gpu": TORCHVISION_DEVICES[named["gpu"]],
                "system": path.parent.name,
                "n_gpus": n_gpus,
                "n_gpus_stated": named["gpus"] is not None,
                "batch_total": TORCHVISION_BATCH * n_gpus,
                "dtype": named["dtype"].replace("single", "float"),
                "mode": named["mode"],
                "model": times.columns,
                "repeat": None,
                "ms_median": times.median().round(4).to_numpy(),
                "ms_p10": times.quantile(0.1).round(4).to_numpy(),
                "ms_p90": times.quantile(0.9).round(4).to_numpy(),
                "ms_mean": times.mean().round(4).to_numpy(),
                "n": len(times),
            }
        )
        parts.append(part)
    order = ["gpu", "system", "n_gpus", "dtype", "mode", "model"]
    return {"torchvision_bs12.csv": pd.concat(parts).sort_values(order, ignore_index=True)}


def parvagpu(files: Files) -> Tables:
    """Return the runs; a throughput of zero means that a batch did not fit.

    The names of two columns are misleading, see `dataset.measured.sources.parvagpu`.
    """
    parts = []
    for path in files.values():
        table = pd.read_csv(path)
        table = table[table["Throughput"] > 0]
        rate, processes = table["Throughput"], table["Workload Number"]
        part = pd.DataFrame(
            {
                "model": path.stem,
                "gpu": "A100-80GB",
                "mig_slices": table["Mig instance"],
                "batch": table["Batch size"],
                "processes_mps": processes,
                "throughput_per_s_total": rate,
                "latency_ms_printed": 1e3 * table["Latency"],
                "latency_ms_from_throughput": (1e3 * table["Batch size"] * processes / rate).round(
                    3
                ),
                "status": "ok",
            }
        )
        parts.append(part)
    return {"a100_mig_mps.csv": pd.concat(parts, ignore_index=True)}


MIGPERF_NAMES = {
    "model_name": "model",
    "batch_size": "batch",
    "seq_length": "seq_len",
    "latency": "latency_ms",
    "latency_std": "latency_std_ms",
    "fb_used_mean": "fb_used_mib",
    "fb_used_std": "fb_used_std_mib",
    "gract_mean": "gract",
}
MIGPERF_KEYS = ["mode", "model", "mig_profile", "seq_len", "batch"]
MIGPERF_COLUMNS = [
    *("gpu", "mode", "model", "mig_profile", "batch", "seq_len"),
    *("latency_ms", "latency_std_ms", "samples_per_s", "fb_used_mib", "fb_used_std_mib", "gract"),
]


def migperf(files: Files) -> Tables:
    """Return inference and training on slices, sorted by conditions.

    The first of several rows for a point is used; small batches of training have times only. A
    time of zero means that a batch did not fit.
    """
    parts = []
    for name, path in files.items():
        part = pd.read_csv(path).rename(columns=MIGPERF_NAMES)
        parts.append(part.assign(mode="train" if "/train/" in name else "inference"))
    table = pd.concat(parts, ignore_index=True).drop_duplicates(MIGPERF_KEYS)
    table = table[table["latency_ms"] > 0]
    rate = (1e3 * table["batch"] / table["latency_ms"]).round(2)
    table = table.assign(gpu="NVIDIA A100 80GB", samples_per_s=rate)
    table = table.sort_values(MIGPERF_KEYS, ignore_index=True)
    return {"a100_80gb_mig.csv": table[MIGPERF_COLUMNS]}
