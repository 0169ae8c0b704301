"""Image models that share a slice of an A100 with copies of themselves, with models held out.

    python -m training.studies.neighbours [--data DATA] [--write] [--results STEM]

DATA is the folder that holds `parvagpu`: one to five clients of MPS on a slice, all with the same
model and batch, in a loop that times the pass and the copy of its input. The shipped checkpoint
predicts each client alone, from rows that it was trained on; the effect of neighbours is fitted
here, and every model is held out in turn.

Each row counts twice, once with the predicted and once with the measured latency alone, so that
the errors of prediction and law can be told apart: "end to end" is the first, "slow-down" the
second. The inputs of the law were chosen by these errors, which are therefore somewhat optimistic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import least_squares

import dippm
from dataset.measured.location import data_dir
from dataset.measured.sources import parvagpu
from dippm.decide.sharing.load import load_of
from dippm.devices import find
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.neighbour_law import FILE, Load, NeighbourLaw, shared_latency_ms
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph import ModelGraph
from training.studies.kernel_tables import markdown
from training.studies.options import Results

Floats = NDArray[np.float64]
DEVICE = "A100-80GB"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROCESSES = range(1, 6)
PARALLEL_GAIN = 1.35
"""Largest plausible throughput of several processes, relative to the fastest batch alone; above it
some processes had run out of memory and died, but were counted."""
START = NeighbourLaw(work=1.0, copy=1.0, corner=8.0)
MOST_CORNER = 50.0
OUTLIER = 0.1
"""Log error above which the pull of a row is constant (Huber loss)."""
SHIPPED = Path(dippm.__file__).parent / "estimate" / "models" / FILE


@dataclass(frozen=True, slots=True)
class Cell:
    """A model at a batch on a slice.

    Attributes:
        model: name of a model of torchvision.
        mig: name of the slice.
        batch: samples per pass.
        load: predicted load of a process.
        log_half_width: half width of the 90 % interval of its predicted latency alone.
        measured_ms: latency of each process by the number of processes.
    """

    model: str
    mig: str
    batch: int
    load: Load
    log_half_width: float
    measured_ms: dict[int, float]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with neighbours as arrays, one entry each, all of shape (R,).

    Attributes:
        model: names of the models.
        processes: number of processes on the slice, 2 to 5.
        alone_ms: latency alone, predicted.
        filled_ms, copy_ms: load of a process, see `Load`.
        measured_ms: measured latency of each process with its neighbours.
        measured_alone_ms: measured latency of a process by itself.
        log_half_width: half width of the interval of the prediction alone.
    """

    model: NDArray[np.str_]
    processes: Floats
    alone_ms: Floats
    filled_ms: Floats
    copy_ms: Floats
    measured_ms: Floats
    measured_alone_ms: Floats
    log_half_width: Floats

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Rows:
        """Return all rows of more than one process."""
        found = [
            (
                *(c.model, k, c.load.alone_ms, c.load.filled_ms, c.load.copy_ms),
                *(ms, c.measured_ms[1], c.log_half_width),
            )
            for c in cells
            for k, ms in c.measured_ms.items()
            if k > 1 and 1 in c.measured_ms
        ]
        names, *columns = zip(*found, strict=True)
        return cls(np.array(names), *(np.array(column, np.float64) for column in columns))

    def chosen(self, which: NDArray[np.bool_]) -> Rows:
        """Return a selection of the rows."""
        return Rows(*(getattr(self, name)[which] for name in self.__slots__))

    def log_error(self, law: NeighbourLaw, *, alone: str) -> Floats:
        """Return log of predicted over measured latency, shape (R,).

        Args:
            law: law of the predictions.
            alone: latency alone to start from, "predicted" or "measured"; with the measured one
                the whole load is scaled accordingly.
        """
        start = self.alone_ms if alone == "predicted" else self.measured_alone_ms
        scale = start / self.alone_ms
        demand = np.minimum(scale * (law.work * self.filled_ms + law.copy * self.copy_ms), start)
        # the fair share of one of several alike: what `fair_share` returns
        k = self.processes
        share = np.maximum(1.0 / k, 1.0 - (k - 1.0) * demand / start)
        return np.asarray(
            np.log(shared_latency_ms(start, demand, share, law.corner) / self.measured_ms)
        )


def read_cells(data: Path, loaded: LoadedPredictor) -> tuple[list[Cell], int]:
    """Return measurements with predictions, and the number of omitted rows."""
    table = parvagpu.read(data / "parvagpu")
    wrong = _some_died(table)
    table = table[~wrong]
    cells = []
    for model, of_model in table.groupby("model"):
        graph = dippm.read_graph(str(model).split("@")[0], input=(3, 224, 224))
        for (mig, batch), rows in of_model.groupby(["mig_profile", "batch"]):
            c = conditions(str(mig), int(batch))
            alone = loaded.predict_at(graph, c)
            assert alone.latency_ms is not None
            half = np.log(alone.intervals["latency_ms"].high / alone.latency_ms)
            ms = dict(zip(rows["processes_mps"].tolist(), rows["latency_ms"].tolist(), strict=True))
            load = load_of(loaded, graph, c, alone)
            name = str(model).removeprefix("torchvision:").split("@")[0]
            cells.append(Cell(name, str(mig), int(batch), load, float(half), ms))
    return cells, int(wrong.sum())


def _some_died(table: pd.DataFrame) -> pd.Series:
    """Return the rows in which fewer processes ran than were started."""
    rate = 1e3 * table["batch"] / table["latency_ms"]
    alone = table["processes_mps"] == 1
    place = [table["model"], table["mig_profile"]]
    fastest = rate.where(alone).groupby(place).transform("max")
    return ~alone & (table["processes_mps"] * rate > PARALLEL_GAIN * fastest)


def conditions(mig: str, batch: int) -> Conditions:
    """Return the conditions of the table."""
    return Conditions(
        device=find(DEVICE), batch=batch, precision="tf32", timer="wall+copy", mig=mig,
        autograd=True,
    )  # fmt: skip


def fit(rows: Rows) -> NeighbourLaw:
    """Fit the law to some rows; models have equal weight, whatever the number of their rows."""
    count = Counter(rows.model.tolist())
    weight = np.array([1 / np.sqrt(count[name]) for name in rows.model.tolist()])
    weight /= np.sqrt((weight**2).mean())

    def law(p: Floats) -> NeighbourLaw:
        work, copy, corner = np.exp(p).tolist()
        return NeighbourLaw(work, copy, min(1.0 + corner, MOST_CORNER))

    def residuals(p: Floats) -> Floats:
        off = [rows.log_error(law(p), alone=alone) for alone in ("predicted", "measured")]
        return np.concatenate([weight * one for one in off])

    start = np.log([START.work, START.copy, START.corner - 1.0])
    return law(least_squares(residuals, start, loss="soft_l1", f_scale=OUTLIER).x)


def held_out(rows: Rows) -> dict[str, Floats]:
    """Return log errors of all rows by starting latency, each model by the law of the others."""
    found = {alone: np.zeros(len(rows.model)) for alone in ("predicted", "measured")}
    for name in sorted(set(rows.model.tolist())):
        own = rows.model == name
        law = fit(rows.chosen(~own))
        for alone, off in found.items():
            off[own] = rows.chosen(own).log_error(law, alone=alone)
    return found


def within(rows: Rows, off: dict[str, Floats]) -> tuple[float, float]:
    """Return the coverage of 90 % intervals, of the slow-down and end to end.

    The width of a model's slow-down is that of the other models; end to end it is combined with
    that of the prediction alone.
    """
    slow, whole = [], []
    for name in sorted(set(rows.model.tolist())):
        own = rows.model == name
        half = np.quantile(np.abs(off["measured"][~own]), 0.9)
        slow.append(np.abs(off["measured"][own]) <= half)
        both = np.hypot(half, rows.log_half_width[own])
        whole.append(np.abs(off["predicted"][own]) <= both)
    return float(np.concatenate(slow).mean()), float(np.concatenate(whole).mean())


def memory_cells(data: Path, loaded: LoadedPredictor) -> pd.DataFrame:
    """Return for each point of the table's grid whether it ran, and the verdict of `dippm.share`.

    The loop keeps the last result while it computes the next, and with it all that was saved for
    gradients, so that each client needs that twice.
    """
    table = parvagpu.read(data / "parvagpu")
    ran = set(
        table[["model", "mig_profile", "batch", "processes_mps"]].itertuples(index=False, name=None)
    )
    found = []
    for model in sorted(set(table["model"])):
        graph = dippm.read_graph(str(model).split("@")[0], input=(3, 224, 224))
        for mig, batch in product(parvagpu.PROFILES.values(), BATCHES):
            needs_mb, capacity_mb = _needs_mb(graph, conditions(mig, batch), loaded)
            for k in PROCESSES:
                point = (model, mig, batch, k)
                found.append((*point, point in ran, k * needs_mb <= capacity_mb))
    columns = ["model", "mig", "batch", "processes", "ran", "feasible"]
    return pd.DataFrame(found, columns=columns)


def _needs_mb(graph: ModelGraph, c: Conditions, loaded: LoadedPredictor) -> tuple[float, float]:
    alone = loaded.predict_at(graph, c)
    assert alone.memory_bound_mb is not None
    assert alone.memory_parts is not None
    return alone.memory_bound_mb + alone.memory_parts.activations_mb, float(c.capacity_mb)


def percent(off: Floats) -> list[str]:
    """Return median and 90 % quantile of the error of the throughput, and bias, in percent."""
    ape = 100 * np.abs(np.expm1(-off))
    bias = 100 * np.expm1(-np.median(off))
    return [f"{v:.1f}" for v in (np.median(ape), np.quantile(ape, 0.9), bias)]


def report(
    cells: Sequence[Cell], wrong: int, memory: pd.DataFrame
) -> tuple[list[str], NeighbourLaw]:
    """Return the paragraphs and tables of the study, and the law of all rows."""
    rows = Rows.of(cells)
    off, law = held_out(rows), fit(rows)
    half = float(np.quantile(np.abs(off["measured"]), 0.9))
    law = replace(
        law,
        work=round(law.work, 3),
        copy=round(law.copy, 3),
        corner=round(law.corner, 2),
        log_half_width=round(half, 3),
        device=DEVICE,
        most_processes=max(PROCESSES),
        models=tuple(sorted(set(rows.model.tolist()))),
    )
    slow, whole = within(rows, off)
    alone = np.log([c.load.alone_ms / c.measured_ms[1] for c in cells if 1 in c.measured_ms])
    ran, feasible = memory["ran"], memory["feasible"]

    def lines(names: Sequence[Any], column: NDArray[Any]) -> list[list[str]]:
        return [
            [
                *(str(name), str(int((column == name).sum()))),
                *percent(off["predicted"][column == name]),
                *percent(off["measured"][column == name]),
            ]
            for name in names
        ]

    head = ["rows", "median APE %", "90 % below", "bias %"]
    both = [*head, "slow-down alone", "90 % below", "bias %"]
    found = [
        f"{len(rows.model)} rows of 2 to {max(PROCESSES)} processes; left out: {wrong} in which "
        "some had died.",
        f"w = {law.work:.3f}, c = {law.copy:.3f}, q = {law.corner:.2f}. 90 % of the slow-downs lie "
        f"within a factor of {np.exp(half):.2f} either way. Intervals of 90 % held "
        f"{100 * slow:.0f} % of the slow-downs and {100 * whole:.0f} % of the latencies end to "
        "end, each model by the width of the others.",
        markdown(
            ["throughput beside neighbours", *head],
            [
                ["end to end", str(len(rows.model)), *percent(off["predicted"])],
                ["slow-down, alone measured", str(len(rows.model)), *percent(off["measured"])],
                ["one process alone", str(len(alone)), *percent(alone)],
            ],
        ),
        markdown(["model left out", *both], lines(law.models, rows.model)),
        markdown(["processes", *both], lines([*PROCESSES][1:], rows.processes)),
        f"Memory: of {int((~ran).sum())} points that did not fit, {int((~ran & feasible).sum())} "
        f"are called feasible; of {int(ran.sum())} that ran, {int((ran & feasible).sum())}.",
    ]
    return found, law


def main(
    data: Annotated[Path | None, typer.Option(help="holds parvagpu")] = None,
    write: Annotated[bool, typer.Option("--write", help="write the law of all rows")] = False,
    results: Results = None,
) -> None:
    """Print errors with models held out."""
    folder, loaded = data or data_dir(), dippm.load(device=DEVICE)
    cells, wrong = read_cells(folder, loaded)
    memory = memory_cells(folder, loaded)
    document = digest(cells, memory)
    cells = cells_of(document)  # figures are those of the file, whose numbers are rounded
    lines, law = report(cells, wrong, memory)
    Console(soft_wrap=True).print("\n\n".join(lines), markup=False, highlight=False)
    if write:
        SHIPPED.write_text(json.dumps(_document(law, cells), indent=1) + "\n", "utf-8")
    if results is not None:
        command = "`python -m training.studies.neighbours --write --results STEM`"
        text = ["# Neighbours under MPS on an A100, models held out", command, *lines]
        results.with_suffix(".md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
        rows = ",\n".join(json.dumps(row) for row in document["cells"])
        memory_rows = json.dumps(document["memory"])
        results.with_suffix(".json").write_text(
            f'{{"cells": [\n{rows}\n],\n"memory": {memory_rows}}}\n', encoding="utf-8"
        )


def digest(cells: Sequence[Cell], memory: pd.DataFrame) -> dict[str, Any]:
    """Return the data from which the figures can be computed without the table."""
    counted = memory.groupby(["ran", "feasible"]).size()
    return {
        "cells": [
            [
                *(c.model, c.mig, c.batch, [float(f"{v:.5g}") for v in asdict(c.load).values()]),
                *(round(c.log_half_width, 4), {k: round(ms, 3) for k, ms in c.measured_ms.items()}),
            ]
            for c in cells
        ],
        "memory": [
            {"ran": bool(ran), "feasible": bool(feasible), "points": int(n)}
            for (ran, feasible), n in counted.items()
        ],
    }


def cells_of(document: dict[str, Any]) -> list[Cell]:
    """Return the cells of a digest."""
    return [
        Cell(model, mig, batch, Load(*load), half, {int(k): ms for k, ms in measured.items()})
        for model, mig, batch, load, half, measured in document["cells"]
    ]


def _document(law: NeighbourLaw, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "source": "parvagpu: clients of MPS on slices; training/studies/neighbours.py",
        "device": law.device,
        "rows": len(Rows.of(cells).model),
        "models": list(law.models),
        "most_processes": law.most_processes,
        "law": {"work": law.work, "copy": law.copy, "corner": law.corner},
        "log_half_width": law.log_half_width,
    }


if __name__ == "__main__":
    typer.run(main)
