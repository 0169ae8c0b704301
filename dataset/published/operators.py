"""Published times of single operators → our tables, one function per source."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

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
    """Return products and attention, sorted by conditions; the first of repeated rows is used."""
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
"""Our table → its operators by the source's names, and their shape columns."""
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
"""GPUs reserved for tests on unseen devices."""


def neusight_ops(files: Files) -> Tables:
    """Return operators by kind, sorted by conditions; the folder says train or test."""
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


FLAGPERF_INPUTS = Path(__file__).with_name("flagperf_inputs.csv")
"""Inputs of each operator, which are in the source's code and not in its results."""
FLAGPERF_PRODUCTS = ("addmm", "bmm", "linear", "mm", "mv")
FLAGPERF_TF32 = ("mm", "nativetorch")
"""The only FP32 product above the FP32 peak without tensor cores, thus TF32."""
RELIABLE_LOOP_S = 20
"""Minimum loop duration for a settled power sensor."""


def flagperf(files: Files) -> Tables:
    """Return time and power of operators, sorted by conditions."""
    inputs = pd.read_csv(FLAGPERF_INPUTS).set_index("op")
    steps = {
        path.parts[2]: int(files[str(path)].read_text().split(":")[1])
        for path in map(PurePosixPath, files)
        if path.suffix == ".yaml"
    }
    rows = []
    for name, path in files.items():
        if path.suffix != ".md":
            continue
        op, dtype = PurePosixPath(name).parts[2], path.name.removesuffix("_README.md")
        for impl, figures in _flagperf_figures(path.read_text(encoding="utf-8")).items():
            loop_s = round(figures["cputime"] / 1e6 * steps[op], 1)
            matmul = None
            if dtype == "FP32" and op in FLAGPERF_PRODUCTS:
                matmul = "TF32" if (op, impl) == FLAGPERF_TF32 else "IEEE FP32"
            rows.append(
                {
                    "gpu": "NVIDIA A100-SXM4-40GB",
                    "op": op,
                    "dtype": dtype,
                    "impl": impl,
                    "pass": inputs["pass"][op],
                    "input_shapes": inputs["input_shapes"][op],
                    "shape_note": inputs["shape_note"][op],
                    "fp32_matmul_mode": matmul,
                    "kernel_time_us": figures["kerneltime"],
                    "cpu_time_us": figures["cputime"],
                    "tflops_kernel": figures["TFLOPS(kernel clock)"],
                    "loop_s": loop_s,
                    "power_reliable": loop_s >= RELIABLE_LOOP_S,
                    "gpu_power_avg_w": figures["单卡平均功耗"],
                    "gpu_power_max_w": figures["单卡最大功耗"],
                    "node_power_avg_w": figures["系统平均功耗"],
                    "gpu_mem_max_pct": figures["单卡最大显存占用"],
                    "gpu_temp_avg_c": figures["单卡平均温度"],
                }
            )
    table = pd.DataFrame(rows).sort_values(["op", "dtype", "impl"], ignore_index=True)
    return {"a100_40gb_op_time_power.csv": table}


def _flagperf_figures(text: str) -> dict[str, dict[str, float]]:
    """Return the figures of each implementation, by table heading on the page."""
    found: dict[str, dict[str, float]] = {}
    headings: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 2:
            headings = []
        elif not headings:
            headings = cells
        elif not cells[0].startswith("-"):
            row = found.setdefault(cells[0].removesuffix("监控结果"), {})
            for heading, cell in zip(headings, cells, strict=True):
                if number := re.match(r"[\d.]+", cell):
                    row[heading] = float(number[0])
    return found
