"""Does the shipped predictor of training steps fit the steps that trained it? A committed table.

    python -m training.steps.fit_gate --data ../shared/data --graphs build/graphs \
        [--collected dataset/data/<device>]

Cells, bound and reasons are those of `training.hybrid.judge.fit_gate`. Steps that updated nothing
train, too, but no question asks for one: they are in no cell.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import dippm
from dataset.join.graph_store import GraphStore
from training.hybrid.judge.fit_gate import gate_cells, write_table
from training.hybrid.rows.collected_rows import read_collected
from training.steps.rows import collected_step_rows, step_rows

CHECKPOINT = "hybrid-gpu-train"
TABLE = Path(__file__).with_name("fit_gate.json")
WORK = "training step"
"""`Cell.work` of each cell."""


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    checkpoint: Annotated[str, typer.Option(help="name or folder")] = CHECKPOINT,
    out: Annotated[Path, typer.Option(help="file to write")] = TABLE,
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own, of one GPU; may be given again")
    ] = None,
) -> None:
    """Ask the steps of every cell, write the table and print what is beyond the bound."""
    store, loaded = GraphStore(graphs), dippm.load(checkpoint)
    rows = step_rows(data, store.__contains__)
    for folder in collected or ():
        rows += collected_step_rows(read_collected(folder, graphs, phase="train"), store)
    asked = [row for row in rows if row.optimizer]
    cells = gate_cells(loaded, asked, store.__getitem__)
    write_table(out, loaded, [replace(cell, work=WORK) for cell in cells])


if __name__ == "__main__":
    typer.run(main)
