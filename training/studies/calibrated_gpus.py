"""Effect of `dippm calibrate` on a GPU that is treated as unknown: errors, coverage and widths.

    python -m training.studies.calibrated_gpus --data ../shared/data --graphs build/graphs

Some models of each measured table are drawn as the measurements of the GPU's owner: they calibrate
a copy of the GPU whose name no checkpoint knows, and all other models of the sample are predicted
before and after. Predictions are made through `dippm.load`, as a user makes them; only the
calibration is fitted. The shipped checkpoint was trained on these rows, so its predictions before
the calibration are better than for a GPU that is truly unknown: with --checkpoint a fold that held
the laboratory or, with --gpu, the GPU out predicts instead
(`training.hybrid.judge.published_folds`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import expm1, log
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import pandas as pd
import typer

import dippm
from dataset.join.graph_store import GraphStore
from dataset.measured import gpt
from dataset.measured.location import DataNotFoundError
from dataset.measured.sources import read
from dippm.cli.output import errors_reported
from dippm.devices import Device, find
from dippm.estimate.conditions import PRECISIONS, Conditions
from dippm.estimate.models.calibration import MeasuredRow, calibrate
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.targets import Estimate
from dippm.model.graph.float_type import in_float32
from dippm.model.graph.model_graph import ModelGraph
from training.evaluation.metrics import coverage
from training.hybrid.rows.examples import Row
from training.hybrid.rows.sources import RECENT_TORCH, row_of

SHIPPED = "hybrid-gpu"
"""Shipped checkpoint; its interval law replaces that of a fold, which has none."""
SOURCES = ("timm_infer", "pytorch_gpu_benchmark", "hwgpt")
CALIBRATING = 10
FEWEST_TESTED = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """A measured row and its prediction.

    Attributes:
        row: measured row.
        graph: graph of its model.
        conditions: conditions on the copy of its GPU.
        measured: the measurement as input of a calibration.
        before: predicted latency before the calibration.
    """

    row: Row
    graph: ModelGraph
    conditions: Conditions
    measured: MeasuredRow
    before: Estimate


@dataclass(frozen=True, slots=True)
class Line:
    """Results of one table over all draws; errors, coverage and half widths in percent.

    Attributes:
        table: source, GPU, software, mode, machine.
        n: number of predicted rows in all draws.
        mape, mape_after: mean absolute percentage error, before and after.
        coverage, coverage_after: share of rows inside the 90 % interval, before and after.
        half_width, half_width_after: median upper half width, relative to the prediction.
        narrower: median decrease of the log width of the interval.
        widened: number of rows whose interval became wider.
    """

    table: str
    n: int
    mape: float
    mape_after: float
    coverage: float
    coverage_after: float
    half_width: float
    half_width_after: float
    narrower: float
    widened: int


def sampled_rows(data: Path, graphs: GraphStore, source: str, most: int) -> list[Row]:
    """Return rows of whole models of a source, one per table and model, for up to `most` models."""
    table = (
        gpt.sample_architectures(read(source, data)) if source == "hwgpt" else read(source, data)
    )
    table = table[table["precision"].isin(PRECISIONS) & (table["latency_ms"] > 0)]
    if source == "hwgpt":
        table = table.assign(model=[gpt.key_of(r) for r in table.to_dict("records")])
    else:
        recent = table["software"].fillna("").str.startswith(RECENT_TORCH)
        table = table[recent | (source != "timm_infer")]
        alone = (table["n_gpus"].fillna(1) == 1) & table["mig_profile"].isna()
        table = table[(table["phase"] == "inference") & alone]
    names = sorted(set(table["model"]), key=lambda name: crc32(name.encode()))
    kept = [name for name in names if name in graphs][:most]
    table = table[table["model"].isin(kept)]
    rows = [row_of(r, r["model"], r["model"], "") for r in table.to_dict("records")]
    found: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: crc32(row.row_id.encode())):
        found.setdefault((row.table, row.graph), row)
    return sorted(found.values(), key=lambda row: row.graph)


def asked_before(predictor: Hybrid, rows: Sequence[Row], graphs: GraphStore) -> Iterator[Asked]:
    """Yield predictions for rows on renamed copies of their GPUs, which no checkpoint knows."""
    name, graph = "", None
    for row in rows:
        if graph is None or row.graph != name:
            name, graph = row.graph, in_float32(graphs[row.graph])
        device = replace(row.device, name=f"{row.device.name} of another", aliases=())
        batch = row.batch if graph.batch_is_symbolic else graph.batch
        conditions = row.conditions.replace(device=device, batch=batch)
        measured = MeasuredRow(
            row.graph, *predictor.class_ms(graph, conditions), latency_ms=row.latency_ms
        )
        before = _latency(predictor, graph, conditions)
        yield Asked(row, graph, conditions, measured, before)


def tried(predictor: Hybrid, mine: Sequence[Asked], seed: int) -> Iterator[tuple[Asked, Estimate]]:
    """Yield the rows that a random draw of a table left out, with predictions after calibration."""
    drawn = np.random.default_rng(seed).permutation(len(mine))
    device = _calibrated([mine[i] for i in drawn[:CALIBRATING]])
    for i in sorted(drawn[CALIBRATING:]):
        asked = mine[i]
        after = _latency(predictor, asked.graph, asked.conditions.replace(device=device))
        yield asked, after


def _calibrated(pack: Sequence[Asked]) -> Device:
    device = pack[0].conditions.device
    found = calibrate([asked.measured for asked in pack], device.name)
    return replace(device, name=f"{device.name} calibrated", calibration=found)


def _latency(predictor: Hybrid, graph: ModelGraph, conditions: Conditions) -> Estimate:
    [estimates] = predictor.predict_many(graph, [conditions])
    return estimates.values["latency_ms"]


def line_of(table: str, found: Sequence[tuple[Asked, Estimate]]) -> Line:
    """Return the effect of the calibration on one table."""
    measured = pd.Series([asked.row.latency_ms for asked, _ in found])
    answers = {"": [a.before for a, _ in found], "_after": [after for _, after in found]}
    figures: dict[str, Any] = {}
    for when, each in answers.items():
        ms = np.array([estimate.value for estimate in each])
        low = pd.Series([estimate.interval.low for estimate in each])
        high = pd.Series([estimate.interval.high for estimate in each])
        figures[f"mape{when}"] = round(100 * float(np.mean(np.abs(ms / measured - 1))), 1)
        figures[f"coverage{when}"] = round(100 * coverage(measured, low, high), 1)
        half = [100 * expm1(_half(estimate)) for estimate in each]
        figures[f"half_width{when}"] = round(median(half), 1)
    ratios = [_half(after) / _half(asked.before) for asked, after in found]
    return Line(
        table,
        len(found),
        narrower=round(100 * (1 - median(ratios)), 1),
        widened=sum(ratio > 1 + 1e-9 for ratio in ratios),
        **figures,
    )


def _half(estimate: Estimate) -> float:
    return log(estimate.interval.high / estimate.value)


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    checkpoint: Annotated[str, typer.Option(help="name or folder")] = SHIPPED,
    source: Annotated[list[str] | None, typer.Option(help="may be given again")] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="of the tables to try; may be given again")
    ] = None,
    models: Annotated[int, typer.Option(help="sampled of each source")] = 30,
    draws: Annotated[int, typer.Option(help="of the calibrating models")] = 2,
    out: Annotated[Path | None, typer.Option(help="JSON file, to add to or to write")] = None,
    label: Annotated[str, typer.Option(help="what the file calls the checkpoint")] = "",
) -> None:
    """Calibrate copies of measured GPUs, and print a line for each table."""
    gpus = {find(name).name for name in gpu or ()}
    predictor, shipped = (dippm.load(name).checkpoint.predictor for name in (checkpoint, SHIPPED))
    assert isinstance(predictor, Hybrid)
    assert isinstance(shipped, Hybrid)
    predictor.intervals = shipped.intervals
    store = GraphStore(graphs)
    lines: list[Line] = []
    every: list[tuple[Asked, Estimate]] = []
    for name in source or SOURCES:
        tables: dict[str, list[Asked]] = {}
        rows = sampled_rows(data, store, name, models)
        rows = [row for row in rows if not gpus or row.device.name in gpus]
        for asked in asked_before(predictor, rows, store):
            tables.setdefault(asked.row.table, []).append(asked)
        for table, mine in sorted(tables.items()):
            if len(mine) < CALIBRATING + FEWEST_TESTED:
                continue
            found = [pair for seed in range(draws) for pair in tried(predictor, mine, seed)]
            lines.append(line_of(table, found))
            typer.echo(json.dumps(asdict(lines[-1])))
            every += found
    if not every:
        raise DataNotFoundError(
            f"no table that was asked for has {CALIBRATING + FEWEST_TESTED} sampled models",
            "Raise --models, or name other sources and GPUs.",
        )
    lines.append(line_of("all", every))
    typer.echo(json.dumps(asdict(lines[-1])))
    if out is not None:
        label = label or checkpoint
        kept = json.loads(out.read_text("utf-8")) if out.exists() else []
        document = [
            *(part for part in kept if part["checkpoint"] != label),
            {"checkpoint": label, "lines": [asdict(line) for line in lines]},
        ]
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(errors_reported(as_json=False)(main))
