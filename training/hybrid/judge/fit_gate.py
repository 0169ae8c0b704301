"""Does the shipped checkpoint fit the rows that trained it? A committed table, held to bounds.

    python -m training.hybrid.judge.fit_gate --data ../shared/data --graphs build/graphs \
        [--collected dataset/data/<device>]

Sets of our own that trained it are given as they were to its training. `training.steps.fit_gate`
makes the table of training steps.

Rows are asked through the shipped door (`shipped_answers`). A cell is what one laboratory measured
of one kind of work on one GPU: (GPU, source, precision, mode, class). Its figure is the median of
log(predicted / measured) over at most 40 rows. Rows below 0.3 ms that a clock on the host timed,
and rows of which the answer says that the host decides them, are left out: they show the launches
of the laboratory's machine, which no question names. A cell of 20 rows and more beyond ±0.10 needs
a line in `fit_gate_reasons.toml` that says why; the tests refuse a table that is not the shipped
checkpoint's, and a cell without a line.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

import dippm
from dataset.join.graph_store import GraphStore
from dippm.estimate.models.hybrid import HOST_DECIDES
from dippm.estimate.predictor import LoadedPredictor
from training.hybrid.judge.shipped_answers import Question, askable_rows, shipped_answers
from training.hybrid.rows.absent_sources import tell_absent
from training.hybrid.rows.collected_rows import read_collected, rows_of, rows_that_teach
from training.hybrid.rows.examples import GraphLookup, Row, sampled_by
from training.hybrid.rows.sources import load_rows

TABLE = Path(__file__).with_name("fit_gate.json")
REASONS = Path(__file__).with_name("fit_gate_reasons.toml")
MOST_ROWS, FEWEST_ROWS = 40, 20
MOST_LOG_ERROR = 0.10
SHORTEST_MS = 0.3
CELL = ("gpu", "source", "precision", "mode", "work")


@dataclass(frozen=True, slots=True)
class Cell:
    """What one laboratory measured of one kind of work on one GPU.

    Attributes:
        gpu, source, precision, mode: conditions of the rows.
        work: "model", or the operator, or the costliest one of a chain, "chain" before it.
        n: rows asked.
        log_error: median of log(predicted / measured).
    """

    gpu: str
    source: str
    precision: str
    mode: str
    work: str
    n: int
    log_error: float

    @property
    def is_beyond(self) -> bool:
        """Tell whether the cell needs a reason."""
        return self.n >= FEWEST_ROWS and abs(self.log_error) > MOST_LOG_ERROR


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    checkpoint: Annotated[str | None, typer.Option(help="name or folder; the default one")] = None,
    out: Annotated[Path, typer.Option(help="file to write")] = TABLE,
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own, of one GPU; may be given again")
    ] = None,
) -> None:
    """Ask the rows of every cell, write the table and print what is beyond the bound."""
    tell_absent(data)
    loaded = dippm.load(checkpoint)
    rows, graph = load_rows(data, graphs)
    store = GraphStore(graphs)
    for folder in collected or ():
        found = read_collected(folder, graphs)
        rows += rows_that_teach(found, rows_of(found, store))
    write_table(out, loaded, gate_cells(loaded, rows, graph))


def write_table(out: Path, loaded: LoadedPredictor, cells: Sequence[Cell]) -> None:
    """Write the table of a checkpoint and print what is beyond the bound."""
    document = {
        "checkpoint": fingerprint(loaded.checkpoint.path),
        "cells": [asdict(cell) for cell in cells],
    }
    lines = ",\n  ".join(json.dumps(cell) for cell in document["cells"])
    head = json.dumps(document["checkpoint"])
    out.write_text(f'{{\n "checkpoint": {head},\n "cells": [\n  {lines}\n ]\n}}\n')
    judged = [cell for cell in cells if cell.n >= FEWEST_ROWS]
    beyond = [cell for cell in judged if cell.is_beyond]
    for cell in sorted(beyond, key=lambda cell: -abs(cell.log_error)):
        named = " · ".join(getattr(cell, name) for name in CELL)
        typer.echo(f"{named}: {cell.log_error:+.2f} over {cell.n}")
    typer.echo(f"{len(beyond)} of {len(judged)} cells beyond ±{MOST_LOG_ERROR:.2f}; wrote {out}")


def gate_cells(loaded: LoadedPredictor, rows: Sequence[Row], graph: GraphLookup) -> list[Cell]:
    """Return the cells of rows, in order.

    Args:
        loaded: loaded checkpoint.
        rows: rows that trained it.
        graph: key → graph.
    """
    asked = (
        row
        for row in askable_rows(rows, graph)
        if row.timer == "kernel" or row.latency_ms >= SHORTEST_MS
    )
    chosen = sampled_by(asked, cell_of, MOST_ROWS)
    answers = shipped_answers([loaded], list(map(Question, chosen)), graph)
    answers["log_error"] = np.log(answers["predicted_ms"] / answers["measured_ms"])
    keys = pd.DataFrame([cell_of(row) for row in chosen], columns=list(CELL))
    known = pd.concat([keys, answers], axis=1).dropna(subset="log_error")
    known = known[known["host_share"] <= HOST_DECIDES]
    grouped = known.groupby(list(CELL))["log_error"]
    return [
        Cell(gpu, source, precision, mode, work, len(found), round(float(found.median()), 3))
        for (gpu, source, precision, mode, work), found in grouped
    ]


def cell_of(row: Row) -> tuple[str, ...]:
    """Return CELL of a row."""
    work = "model" if row.is_model else row.family.removeprefix("operator ")
    return row.device.name, row.source, row.precision, row.mode, work


def fingerprint(checkpoint: Path) -> dict[str, str]:
    """Return the hashes that bind a table to a checkpoint, by file."""
    names = ("config.json", "model.safetensors")
    return {name: sha256((checkpoint / name).read_bytes()).hexdigest() for name in names}


def without_reason(document: Mapping[str, Any], reasons: Path = REASONS) -> list[Cell]:
    """Return the cells of a table beyond the bound that no line of `reasons` is about.

    A line has any of CELL, and "why": it is about the cells that agree with all that it has.
    """
    lines = tomllib.loads(reasons.read_text(encoding="utf-8")).get("cells", [])
    cells = [Cell(**cell) for cell in document["cells"]]
    return [
        cell
        for cell in cells
        if cell.is_beyond
        and not any(all(getattr(cell, k) == line[k] for k in CELL if k in line) for line in lines)
    ]


if __name__ == "__main__":
    typer.run(main)
