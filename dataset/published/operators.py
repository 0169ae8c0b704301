"""Published times of single operators → our tables, a function for each source."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dataset.published.whole_models import Files, Tables

AICONFIGURATOR_KEYS = {
    "gemm": ("gemm_dtype", "m", "n", "k"),
    "context_attention": (
        "attn_dtype",
        "kv_cache_dtype",
        "batch",
        "isl",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "window_size",
        "step",
    ),
    "encoder_attention": ("attn_dtype", "batch", "isl", "num_heads", "head_dim"),
}
AICONFIGURATOR_KEYS["generation_attention"] = AICONFIGURATOR_KEYS["context_attention"]
AICONFIGURATOR_NAMES = {
    "device": "gpu",
    "batch_size": "batch",
    "num_key_value_heads": "num_kv_heads",
    "latency": "latency_ms",
    "power": "power_w",
}
PREDICTED_GEMMS = ("bfloat16", "fp8", "fp8_block")


def aiconfigurator(files: Files) -> Tables:
    """Return products and attention, sorted by what was run; of repeated rows the first stands."""
    parts: dict[str, list[pd.DataFrame]] = {operator: [] for operator in AICONFIGURATOR_KEYS}
    for name, path in files.items():
        table = pd.read_parquet(path).rename(columns=AICONFIGURATOR_NAMES)
        operator = Path(name).stem.removesuffix("_perf")
        keys = ["gpu", "framework", "version", "kernel_source", *AICONFIGURATOR_KEYS[operator]]
        table["framework"] = table["framework"].str.lower()
        if operator == "gemm":
            table = table[table["gemm_dtype"].isin(PREDICTED_GEMMS)]
        elif "window_size" in keys and "window_size" not in table:
            table["window_size"] = 0
        if "power_w" not in table:
            table["power_w"] = None
        parts[operator].append(table[[*keys, "latency_ms", "power_w"]])
    made = {}
    for operator, tables in parts.items():
        table = pd.concat(tables).astype({"power_w": "float32"})
        keys = list(table.columns[:-2])
        table = table.drop_duplicates(keys, keep="first").sort_values(keys, ignore_index=True)
        made[f"{operator}.parquet"] = table
    return made


NEUSIGHT_TABLES = {
    "bmm": (("bmm",), ("B", "M", "N", "K")),
    "linear": (("linear",), ("B", "M", "N", "K")),
    "conv": (
        ("conv",),
        ("B", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
    ),
    "elementwise": (
        ("add", "addu", "div", "divu", "gelu", "mul", "mulu", "pow", "powu", "relu", "tanh"),
        ("B", "H"),
    ),
    "softmax": (("softmax",), ("B", "H")),
    "layernorm": (("ln",), ("B", "H")),
}
"""Our table → its operators as the source calls them, and their shape."""
NEUSIGHT_NAMES = {
    "OPName": "op",
    "Device": "gpu",
    "Input_Channel": "in_channels",
    "Output_Channel": "out_channels",
    "Kernel_Szie": "kernel_size",
    "Input_Size": "input_size",
    "Stride": "stride",
    "Padding": "padding",
    "Latency": "latency_ms",
    "Kernel Name": "kernel",
    "Kernels": "kernels",
    "Warps per SM": "warps_per_sm",
    "Blocks per SM": "blocks_per_sm",
    **{f"{what} {axis}": f"{what.lower()}_{axis}" for what in ("Grid", "Block") for axis in "xyz"},
}
NEUSIGHT_LAUNCH = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
NEUSIGHT_KEPT_BACK = ("NVIDIA H100 80GB HBM3", "NVIDIA L4")
"""GPUs that are kept for tests of what was never trained on."""


def neusight_ops(files: Files) -> Tables:
    """Return operators by kind, sorted by what was run; the folder says train or test."""
    rows = []
    for name, path in files.items():
        split = "test" if "/test/" in name else "train"
        rows.append(pd.read_csv(path).rename(columns=NEUSIGHT_NAMES).assign(split=split))
    everything = pd.concat(rows, ignore_index=True)
    everything = everything[~everything["gpu"].isin(NEUSIGHT_KEPT_BACK)]
    made = {}
    for name, (operators, shape) in NEUSIGHT_TABLES.items():
        keys = ["op", "gpu", "split", *shape]
        table = everything[everything["op"].isin(operators)].sort_values(keys, kind="stable")
        several = ["kernels", "n_kernels"] if table["kernels"].notna().any() else []
        columns = [*keys, "latency_ms", "kernel", *several, *NEUSIGHT_LAUNCH]
        table = table.assign(n_kernels=table["kernels"].str.count(";"))
        table = table[[*columns, "warps_per_sm", "blocks_per_sm"]]
        whole = dict.fromkeys([*shape, *NEUSIGHT_LAUNCH], "int64")
        if several and table["n_kernels"].notna().all():
            whole["n_kernels"] = "int64"
        table = table.astype({**whole, "warps_per_sm": "float32", "blocks_per_sm": "float32"})
        made[f"{name}.parquet"] = table.reset_index(drop=True)
    return made
