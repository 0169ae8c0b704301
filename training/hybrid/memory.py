"""Fits the memory model on device memory measured by the driver.

Teacher: MIGPerf (A100-80GB, resnet50, ViT-B/16 and BERT-base at inference, four slices). Three
models are few: the errors that the card states are of models left out.

    python -m training.hybrid.memory --data ../shared/data --graphs build/graphs
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from scipy.optimize import least_squares

from dataset.graph_store import GraphStore
from dippm.models.memory import MIB, MemoryFootprint, MemoryModel

FULL_GPU = "7g.80gb"
SEQUENCE_MODELS = ("bert-base",)
GRAPHS = {"resnet50": "torchvision:resnet50@224", "vision_transformer": "torchvision:vit_b_16@224"}


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One measured device memory."""

    model: str
    slice: str
    batch: int
    footprint: MemoryFootprint
    memory_mb: float


def migperf_samples(data: Path, graphs: GraphStore) -> list[MemorySample]:
    """Return the inference rows whose graph is at hand."""
    table = pd.read_csv(data / "migperf" / "a100_80gb_mig.csv")
    table = table[(table["mode"] == "inference") & table["fb_used_mib"].notna()]
    footprints: dict[str, MemoryFootprint] = {}
    samples = []
    for row in table.itertuples():
        key = GRAPHS.get(row.model) or f"hf:{row.model}@{int(row.seq_len)}"
        if key not in graphs:
            continue
        if key not in footprints:
            footprints[key] = MemoryFootprint.of(graphs[key])
        samples.append(
            MemorySample(row.model, row.mig_profile, row.batch, footprints[key], row.fb_used_mib)
        )
    return samples


def fit_model(samples: Sequence[MemorySample]) -> MemoryModel:
    """Fit one context per slice and one activation factor; keep the full GPU's context."""
    slices = sorted({s.slice for s in samples} | {FULL_GPU})
    position = np.array([slices.index(s.slice) for s in samples])
    weights = np.array([s.footprint.weight_bytes for s in samples]) / MIB
    peaks = np.array([s.footprint.peak_bytes(s.batch) for s in samples]) / MIB
    labels = np.log([s.memory_mb for s in samples])

    def residual(p: np.ndarray) -> np.ndarray:
        context, factor = np.exp(p[:-1]), np.exp(p[-1])
        error = np.log(context[position] + weights + factor * peaks) - labels
        return np.concatenate([error, 0.05 * (p[:-1] - p[:-1].mean())])

    start = np.concatenate([np.full(len(slices), np.log(1500.0)), [np.log(1.5)]])
    solution = np.exp(least_squares(residual, start, loss="soft_l1", f_scale=0.05).x)
    return MemoryModel(float(solution[slices.index(FULL_GPU)]), float(solution[-1]), 0.0)


def fit_memory(data: Path, graph_folder: Path) -> tuple[MemoryModel, dict[str, object]]:
    """Fit on everything; report and keep the errors of models left out."""
    samples = migperf_samples(data, GraphStore(graph_folder))
    model = fit_model(samples)
    report: dict[str, object] = {}
    held = []
    for name in sorted({s.model for s in samples}):
        rest = fit_model([s for s in samples if s.model != name])
        mine = [s for s in samples if s.model == name and s.slice == FULL_GPU]
        error = np.array(
            [np.log(rest.memory_mb(s.footprint, s.batch, "fp32") / s.memory_mb) for s in mine]
        )
        held.append(error)
        ape = np.abs(np.expm1(error))
        report[name] = {
            "n": len(mine),
            "mape": float(ape.mean()),
            "median_ape": float(np.median(ape)),
            "worst_under": float(error.min()),
        }
    return MemoryModel(model.context_mb, model.activation_factor, _spread(held)), report


def _spread(held: Sequence[np.ndarray]) -> float:
    """Return the log standard deviation whose 90 % and 99 % bounds hold the errors seen.

    Three models say little about a tail, so the one-sided 99 % bound covers the worst of them.
    """
    error = np.concatenate(held)
    return float(max(np.quantile(np.abs(error), 0.9) / 1.645, -error.min() / 2.326))


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
) -> None:
    """Print the fitted memory model and its errors as JSON."""
    model, report = fit_memory(data, graphs)
    typer.echo(json.dumps({"model": asdict(model), "models left out": report}, indent=2))


if __name__ == "__main__":
    typer.run(main)
