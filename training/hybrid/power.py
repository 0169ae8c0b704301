"""Fits the power model on operators whose board power was measured in a steady state.

Teachers: FlagPerf (A100-40GB, one operator repeated for at least 20 s) and AIConfigurator (H200,
one matrix product repeated for about a second). No public table has the power of vision models on
an A100; the model card says so.

    python -m training.hybrid.power --data ../shared/data
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from scipy.optimize import least_squares

from dippm.devices import Device, find
from dippm.models.power import POWER_FEATURES, PowerModel

UNARY = "abs cos sin exp neg reciprocal rsqrt sigmoid silu tanh relu gelu bitwise_not".split()
BINARY = "add sub mul div rsub bitwise_and bitwise_or".split()
READING = "amax sum mean max min prod argmax all".split()
MATRIX = "mm bmm linear addmm".split()
ITEM_BYTES = {"FP32": 4, "FP16": 2, "BF16": 2}
SAMPLED_PRODUCTS = 4000


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One measured power with what the operator used of the device."""

    source: str
    group: str
    device: Device
    features: tuple[float, ...]
    power_w: float


def flagperf_samples(data: Path) -> list[PowerSample]:
    """Return the reliable forward rows whose traffic follows from their shapes."""
    table = pd.read_csv(data / "flagperf" / "a100_40gb_op_time_power.csv")
    device = find("A100-40GB")
    samples = []
    for row in table[table["power_reliable"] & (table["pass"] == "forward")].itertuples():
        work = _flagperf_work(row.op, row.input_shapes, row.dtype)
        if work is None:
            continue
        unit = "half" if row.dtype != "FP32" else "fp32"
        if row.fp32_matmul_mode == "TF32":
            unit = "tf32"
        matrix = row.op in MATRIX
        features = _features(device, *work, row.kernel_time_us / 1e3, unit if matrix else "fp32")
        samples.append(PowerSample("flagperf", f"{row.op}", device, features, row.gpu_power_avg_w))
    return samples


def _flagperf_work(op: str, shapes: str, dtype: str) -> tuple[float, float] | None:
    """Return (FLOPs, bytes) of one call; None if the shapes do not tell."""
    item = ITEM_BYTES.get(dtype)
    if item is None or "target" in shapes:
        return None
    sizes = [[int(s) for s in part.strip(" []").split(",")] for part in shapes.split(";")]
    elements = sum(prod(s) for s in sizes)
    if op in UNARY:
        return float(elements), 2.0 * item * elements
    if op in BINARY and len(sizes) == 2:
        return elements / 2, 1.5 * item * elements
    if op in READING:
        return float(elements), float(item * elements)
    if op in ("mm", "bmm") and len(sizes) == 2:
        out = prod(sizes[0][:-1]) * sizes[1][-1]
        return 2.0 * out * sizes[0][-1], float(item * (elements + out))
    return None


def aiconfigurator_samples(data: Path) -> list[PowerSample]:
    """Return bf16 matrix products on the H200, long enough for the power sensor."""
    table = pd.read_parquet(data / "aiconfigurator" / "gemm.parquet")
    table = table[table["power_w"].notna() & (table["gemm_dtype"] == "bfloat16")]
    table = table[table["latency_ms"] > 0.02]
    table = table.sample(min(SAMPLED_PRODUCTS, len(table)), random_state=0)
    device = find("H200")
    samples = []
    for row in table.itertuples():
        flops = 2.0 * row.m * row.n * row.k
        moved = 2.0 * (row.m * row.k + row.k * row.n + row.m * row.n)
        features = _features(device, flops, moved, row.latency_ms, "half")
        group = f"({row.n}, {row.k})"
        samples.append(PowerSample("aiconfigurator", group, device, features, row.power_w))
    return samples


def _features(
    device: Device, flops: float, moved: float, time_ms: float, unit: str
) -> tuple[float, ...]:
    peaks, fp32 = device.peak_tflops, device.known_rate("fp32")
    peak = {"half": peaks.get("fp16", fp32), "tf32": peaks.get("tf32", fp32)}
    compute = flops / (peak.get(unit, fp32) * 1e9 * time_ms)
    memory = moved / (device.known("bandwidth_gb_s") * 1e6 * time_ms)
    return (
        1.0, min(1.0, compute), min(1.0, memory), float(unit == "half"), float(unit == "tf32")
    )  # fmt: skip


def fit_power(samples: Sequence[PowerSample]) -> PowerModel:
    """Fit idle fraction and coefficients; sources weigh the same."""
    counts = pd.Series([s.source for s in samples]).value_counts()
    weights = np.array([1 / np.sqrt(counts[s.source]) for s in samples])
    labels = np.log([s.power_w for s in samples])
    limits = np.array([s.device.known("power_limit_w") for s in samples])
    features = np.array([s.features for s in samples])

    def residual(p: np.ndarray) -> np.ndarray:
        idle = 0.05 + 0.25 / (1 + np.exp(-p[0]))
        u = 1 / (1 + np.exp(-features @ p[1:]))
        predicted = np.log(limits * (idle + (1 - idle) * u))
        shrink = 0.02 * p[1:]
        return np.concatenate([weights * (predicted - labels), shrink])

    start = np.zeros(1 + len(POWER_FEATURES))
    solution = least_squares(residual, start, loss="soft_l1", f_scale=0.02).x
    idle = 0.05 + 0.25 / (1 + np.exp(-solution[0]))
    return PowerModel(float(idle), tuple(float(c) for c in solution[1:]), 0.0)


def errors(model: PowerModel, samples: Sequence[PowerSample]) -> np.ndarray:
    """Return log(predicted / measured), shape (len(samples),)."""
    predicted = [model.power_w(s.device, 1.0, s.features) for s in samples]
    return np.log(np.array(predicted) / np.array([s.power_w for s in samples]))


def evaluate(samples: Sequence[PowerSample]) -> tuple[PowerModel, dict[str, object]]:
    """Fit on all; report errors with each source, and each fifth of operators, left out."""
    model = fit_power(samples)
    report: dict[str, object] = {}
    groups = sorted({s.group for s in samples})
    fold = {g: i % 5 for i, g in enumerate(np.random.default_rng(0).permutation(groups).tolist())}
    held = np.zeros(len(samples))
    for k in range(5):
        rest = fit_power([s for s in samples if fold[s.group] != k])
        inside = [i for i, s in enumerate(samples) if fold[s.group] == k]
        held[inside] = errors(rest, [samples[i] for i in inside])
    for source in sorted({s.source for s in samples}):
        mine = np.array([s.source == source for s in samples])
        others = [s for s in samples if s.source != source]
        across = errors(fit_power(others), [s for s in samples if s.source == source])
        report[source] = {
            "n": int(mine.sum()),
            "operators held out": _summary(held[mine]),
            "source and GPU held out": _summary(across),
        }
    spread = float(np.quantile(np.abs(held), 0.9) / 1.645)
    return PowerModel(model.idle_fraction, model.coefficients, spread), report


def _summary(log_errors: np.ndarray) -> dict[str, float]:
    ape = np.abs(np.expm1(log_errors))
    return {"mape": float(ape.mean()), "median_ape": float(np.median(ape))}


def main(data: Annotated[Path, typer.Option(help="folder of measured tables")]) -> None:
    """Print the fitted power model and its errors as JSON."""
    samples = flagperf_samples(data) + aiconfigurator_samples(data)
    model, report = evaluate(samples)
    typer.echo(json.dumps({"model": asdict(model), "errors": report}, indent=2))


if __name__ == "__main__":
    typer.run(main)
