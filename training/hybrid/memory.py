"""Fits the memory model on device memory measured by the driver.

Teachers: MIGPerf (A100-80GB: resnet50, ViT-B/16 and BERT-base at inference, four slices) and
optimum-benchmark (A100-80GB: BERT-base by PyTorch, 1 to 2,048 samples). Both ran software of 2022
and 2023, whose attention was not fused. Four things are fitted: the context, its share for each
multiprocessor, the library of convolutions, and nothing of the activations, which follow from the
graph. The errors that the card states are of models left out: what one table or both measured of
an architecture is left out together.

    python -m training.hybrid.memory --data ../shared/data --graphs build/graphs
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from scipy.optimize import least_squares

from dataset.join.graph_store import GraphStore
from dippm.devices import find
from dippm.models.memory import MemoryFootprint, MemoryModel, Usage

DEVICE = "A100-80GB"
FULL_GPU = "7g.80gb"
GRAPHS = {"resnet50": "torchvision:resnet50@224", "vision_transformer": "torchvision:vit_b_16@224"}
PYTORCH_BGE = "2.0.1"
UNUSED = {
    "migperf, training": "the memory of a backward pass, which is not predicted",
    "optimum_benchmark, ort-gpu": "another framework, with an allocator of its own",
    "optimum_benchmark, LLaMA, Mistral, Vicuna": "passes that fill a cache of keys and values, of "
    "which there is no graph; what the driver shows is 25.8 GB at batch 1 and 2 alike",
    "raphischer": "the most that a sensor saw in a run: ResNet-50 at batch 32 stands at 4.2 GB, "
    "in migperf at 2.3; what else was in memory is not recorded",
    "flagperf": "single operators, in per cent of the board",
    "seeds_reported": "a pass that keeps every result, see training.studies.seed_memory",
}
"""Tables that hold memory and do not teach, with the reason."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One measured device memory.

    Attributes:
        model: architecture; what shares it is left out together.
        source: table.
        place: slice, or "whole" for the GPU.
        sm_count: multiprocessors of the slice or GPU.
        batch: samples per pass.
        usage: of the model at the batch.
        memory_mb: label.
    """

    model: str
    source: str
    place: str
    sm_count: int
    batch: int
    usage: Usage
    memory_mb: float


class _Usages:
    """What a model needs at a batch, worked out once."""

    def __init__(self, graphs: GraphStore) -> None:
        self.graphs = graphs
        self._footprints: dict[str, MemoryFootprint] = {}
        self._usages: dict[tuple[str, int], Usage] = {}

    def at(self, key: str, batch: int) -> Usage | None:
        if key not in self.graphs:
            return None
        if key not in self._footprints:
            self._footprints[key] = MemoryFootprint.of(self.graphs[key], attention="unfused")
        if (key, batch) not in self._usages:
            self._usages[key, batch] = self._footprints[key].usage(batch)
        return self._usages[key, batch]


def samples(data: Path, graphs: GraphStore) -> list[MemorySample]:
    """Return the measured rows whose graph is at hand."""
    usages = _Usages(graphs)
    return [*_migperf(data, usages), *_optimum(data, usages)]


def _migperf(data: Path, usages: _Usages) -> list[MemorySample]:
    table = pd.read_csv(data / "migperf" / "a100_80gb_mig.csv")
    table = table[(table["mode"] == "inference") & table["fb_used_mib"].notna()]
    slices = {profile.name: profile.sm_count for profile in find(DEVICE).mig_profiles}
    found = []
    for row in table.itertuples():
        key = GRAPHS.get(row.model) or f"hf:{row.model}@{int(row.seq_len)}"
        usage = usages.at(key, int(row.batch))
        if usage is not None:
            place = row.mig_profile
            found.append(
                MemorySample(
                    row.model, "migperf", place, slices[place], row.batch, usage, row.fb_used_mib
                )
            )
    return found


def _optimum(data: Path, usages: _Usages) -> list[MemorySample]:
    """Rows of bge-base, which is BERT-base."""
    table = pd.read_csv(data / "optimum_benchmark" / "a100_80gb_inference.csv")
    mine = table["model"].str.contains("bge-base") & (table["torch"] == PYTORCH_BGE)
    whole = find(DEVICE).sm_count
    assert whole is not None
    found = []
    for row in table[mine & table["forward_peak_memory_mb"].notna()].itertuples():
        usage = usages.at(f"hf:bert-base@{int(row.seq_len)}", int(row.batch))
        if usage is not None:
            found.append(
                MemorySample(
                    "bert-base",
                    "optimum_benchmark",
                    "whole",
                    whole,
                    int(row.batch),
                    usage,
                    row.forward_peak_memory_mb,
                )
            )
    return found


def fit_model(rows: Sequence[MemorySample]) -> MemoryModel:
    """Fit the context; large batches and their outliers weigh little."""
    labels = np.log([row.memory_mb for row in rows])

    def model(p: np.ndarray) -> MemoryModel:
        context, per_sm, convolution = map(float, np.exp(p))
        return MemoryModel(context, per_sm, convolution, 0.0)

    def residual(p: np.ndarray) -> np.ndarray:
        fitted = model(p)
        return np.log([fitted.memory_mb(row.usage, row.sm_count) for row in rows]) - labels

    start = np.log([1000.0, 4.0, 200.0])
    return model(least_squares(residual, start, loss="soft_l1", f_scale=0.01).x)


def fit_memory(data: Path, graph_folder: Path) -> tuple[MemoryModel, dict[str, object]]:
    """Fit on everything; report and keep the errors of models left out."""
    rows = samples(data, GraphStore(graph_folder))
    report: dict[str, object] = {}
    held: dict[str, np.ndarray] = {}
    for name in sorted({row.model for row in rows}):
        rest = fit_model([row for row in rows if row.model != name])
        mine = [row for row in rows if row.model == name]
        error = np.array([rest.memory_mb(r.usage, r.sm_count) / r.memory_mb for r in mine]) - 1
        for source in sorted({row.source for row in mine}):
            chosen = np.array([row.source == source for row in mine])
            report[f"{name}, {source}"] = _errors(error[chosen])
        held[name] = error
    everything = np.concatenate(list(held.values()))
    report["all"] = _errors(everything)
    report["not used"] = UNUSED
    return replace(fit_model(rows), log_error=_spread(np.log1p(everything))), report


def _errors(error: np.ndarray) -> dict[str, float]:
    ape = np.abs(error)
    return {
        "n": len(error),
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "worst_under": float(error.min()),
        "worst_over": float(error.max()),
    }


def _spread(error: np.ndarray) -> float:
    """Return the log standard deviation whose 90 % and 99 % bounds hold the errors seen.

    Three models say little about a tail, so the one-sided 99 % bound covers the worst of them.
    """
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
