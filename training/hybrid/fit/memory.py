"""Fits the memory model on measured device memory; `memory_samples` says what was measured.

Three things are fitted: the context, its share for each multiprocessor, the library of
convolutions, and nothing of the activations, which follow from the graph. The errors that the card
states are of models left out: what one table or both measured of an architecture is left out
together, and of a set of our own a fifth of its architectures.

    python -m training.hybrid.fit.memory --data ../shared/data --graphs build/graphs
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.join.graph_store import GraphStore
from dippm.models.memory import MemoryModel
from training.hybrid.rows.collected_memory import collected_memory
from training.hybrid.rows.collected_rows import CollectedSet
from training.hybrid.rows.memory_samples import UNUSED, MemorySample, memory_samples

Floats = NDArray[np.float64]


def fit_model(rows: Sequence[MemorySample]) -> MemoryModel:
    """Fit the context; large batches and their outliers weigh little.

    A set of our own weighs as much as other people's tables together, however many rows it has.
    """
    labels = np.log([row.memory_mb for row in rows])
    weights = _weights(rows)

    def model(p: Floats) -> MemoryModel:
        context, per_sm, convolution = map(float, np.exp(p))
        return MemoryModel(context, per_sm, convolution, 0.0)

    def residual(p: Floats) -> Floats:
        fitted = model(p)
        predicted = np.log([fitted.memory_mb(row.usage, row.sm_count) for row in rows])
        return np.asarray(weights * (predicted - labels))

    start = np.log([1000.0, 4.0, 200.0])
    return model(least_squares(residual, start, loss="soft_l1", f_scale=0.01).x)


def _weights(rows: Sequence[MemorySample]) -> Floats:
    sizes = Counter(row.source for row in rows if row.part)
    others = sum(not row.part for row in rows)
    return np.array(
        [np.sqrt(others / sizes[row.source]) if row.part and others else 1.0 for row in rows]
    )


def fit_memory(
    data: Path, graph_folder: Path, collected: Sequence[CollectedSet] = ()
) -> tuple[MemoryModel, dict[str, object]]:
    """Fit on everything; report and keep the errors of models left out."""
    graphs = GraphStore(graph_folder)
    ours = [sample for found in collected for sample in collected_memory(found, graphs)]
    return evaluate([*memory_samples(data, graphs), *ours])


def evaluate(rows: Sequence[MemorySample]) -> tuple[MemoryModel, dict[str, object]]:
    """Return the model fitted on all samples, and the errors of what was left out."""
    report: dict[str, object] = {}
    held: dict[str, Floats] = {}
    errors_of: dict[tuple[str, str, str], list[float]] = {}
    for name in sorted({row.held_out for row in rows}):
        rest = fit_model([row for row in rows if row.held_out != name])
        mine = [row for row in rows if row.held_out == name]
        error = np.array([rest.memory_mb(r.usage, r.sm_count) / r.memory_mb for r in mine]) - 1
        for row, wrong in zip(mine, error.tolist(), strict=True):
            table = row.source if row.part else f"{row.model}, {row.source}"
            # All that other people measured has a line besides.
            for each in (table,) if row.part else (table, "all"):
                errors_of.setdefault((each, row.device, row.precision), []).append(wrong)
        held[name] = error
    for (table, device, precision), wrong in errors_of.items():
        of = {"gpu": device, "data": f"{table}, {precision}"}
        report[f"{table}, {device}, {precision}"] = {**of, **relative_errors(np.array(wrong))}
    everything = np.concatenate(list(held.values()))
    report["all"] = relative_errors(everything)
    report["not used"] = UNUSED
    return replace(fit_model(rows), log_error=log_spread(np.log1p(everything))), report


def memory_lines(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line of the card for each table; other people's have one for each architecture."""
    return [
        {
            "gpu": found["gpu"],
            "target": "memory_mb",
            "data": found["data"],
            "split": "model held out",
            "n": found["n"],
            "median_ape": round(100 * found["median_ape"], 2),
            "mape": round(100 * found["mape"], 2),
            "question": "memory of a model never seen",
        }
        for found in report.values()
        if "gpu" in found
    ]


def relative_errors(error: Floats) -> dict[str, float]:
    """Return what is reported of predicted over measured memory, minus 1."""
    ape = np.abs(error)
    return {
        "n": len(error),
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "worst_under": float(error.min()),
        "worst_over": float(error.max()),
    }


def log_spread(error: Floats) -> float:
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
