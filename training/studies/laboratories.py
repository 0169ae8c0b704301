"""What a user gets whose laboratory measured nothing for us: one laboratory left out at a time.

    python -m training.studies.laboratories --data DATA --graphs GRAPHS --work WORK

For each laboratory the law is fitted without all that it measured, published as a checkpoint is,
and asked through the shipped door for its rows on GPUs that another laboratory taught. Fits and
answers are kept under WORK, those of `training.hybrid.train` among them (`--laboratory NAME` does
one alone), and the results of all that are there are written. Members are one per fold, intervals
those of the shipped checkpoint's law, which saw some of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

import dippm
from dataset.join.latency_splits import laboratory_out
from dippm.models.hybrid import Hybrid
from dippm.models.memory import MemoryModel
from dippm.pretrained.model_card import table
from training.hybrid.fit.folds import table_of
from training.hybrid.fit.network_fit import STEPS
from training.hybrid.judge.published_folds import published_held_out
from training.hybrid.judge.report import laboratory_lines
from training.hybrid.rows.sources import load_rows
from training.hybrid.train import runner_of

RESULTS = Path(__file__).with_name("results")
COLUMNS = (
    "gpu", "data", "n", "architectures", "median_ape", "mape", "log_bias", "coverage",
    "median_half_width",
)  # fmt: skip


TEXT = """\
# Laboratories held out

Latency, one laboratory left out of the law and of the effects of GPUs at a time, asked through the
shipped door; errors in percent. Rows that the host decides are left out. Fits of {steps:,} steps,
one member; intervals of 90 % by the law of {checkpoint}. Command: `python -m
training.studies.laboratories`.

"""


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    work: Annotated[Path, typer.Option(help="folder of the training's examples and fits")],
    steps: Annotated[int, typer.Option(help="optimiser steps of each network")] = STEPS,
    laboratory: Annotated[
        list[str] | None, typer.Option(help="source to leave out; may be given again; all")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of laboratories.json and .md")] = RESULTS,
) -> None:
    """Fit and ask what is missing, then write both files."""
    runner = runner_of(data, graphs, work, steps)
    graph = load_rows(data, graphs)[1]
    tasks = runner.tasks(laboratory_out(table_of(runner.examples)), (0,))
    unknown = set(laboratory or ()) - {task.fold for task in tasks}
    if unknown:
        raise typer.BadParameter(f"no laboratory {', '.join(sorted(unknown))}")
    wanted = [task for task in tasks if not laboratory or task.fold in laboratory]
    runner.run(wanted)
    shipped = dippm.load().checkpoint
    predictor = shipped.predictor
    assert isinstance(predictor, Hybrid)
    assert isinstance(predictor.memory, MemoryModel)
    weight = float(predictor.config["law"]["network_weight"])
    for task in wanted:
        held = published_held_out(
            runner, [task], graph, weight=weight, memory=predictor.memory, power=predictor.power
        )
        lines = laboratory_lines(runner.examples, held, partial(shipped_widths, predictor))
        for line in lines:
            typer.echo(f"{line['gpu']}, {line['data']}: {line['median_ape']} % of {line['n']}")
        found = [{"laboratory": task.fold, **line} for line in lines]
        write(out, found, f"{shipped.name} {shipped.version}", steps)


def shipped_widths(shipped: Hybrid, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return the log half widths of answers by the law of a checkpoint, shape (len(rows),)."""
    law = [
        shipped.intervals.half_width(features, group)
        for features, group in zip(rows["features"], rows["group"], strict=True)
    ]
    return np.asarray(np.hypot(np.array(law), rows["beside_law"].to_numpy(np.float64)))


def write(out: Path, lines: Sequence[Mapping[str, Any]], checkpoint: str, steps: int) -> None:
    """Write laboratories.json and laboratories.md; laboratories that were not done stay."""
    path = out / "laboratories.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["lines"] if path.exists() else []
    done = {line["laboratory"] for line in lines}
    every = sorted(
        [*(line for line in kept if line["laboratory"] not in done), *lines],
        key=lambda line: (line["data"].partition("(")[2], line["gpu"], line["data"]),
    )
    found = {"intervals and weight of": checkpoint, "steps": steps, "lines": every}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = [{name: line[name] for name in COLUMNS} for line in every]
    text = TEXT.format(steps=steps, checkpoint=checkpoint) + table(shown) + "\n"
    (out / "laboratories.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
