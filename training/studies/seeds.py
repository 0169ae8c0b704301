"""How far the default predictor's errors depend on the seed of its learners.

    python -m training.studies.seeds --data DATA --graphs GRAPHS --work WORK

WORK is the folder that `training.hybrid.train` kept its fits in: seed 0 of every fold is there, so
only the other seeds are fitted. Every fit is kept, and the command writes its results after each
split, so it can be interrupted and repeated. Each seed is judged as a training of its own: the
weight of the network in the mean is chosen with that seed alone. A line says, for a table and a
split, the errors' mean over seeds with the least and the largest, and a 95 % interval of the mean
by bootstrap over architectures (all seeds of an architecture go together).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from dataset.join.latency_splits import SPLITS, latency_splits
from training.evaluation.held_out import HeldOut
from training.evaluation.metrics import bootstrap, grouped_errors
from training.hybrid.examples import Examples
from training.hybrid.folds import Task, table_of
from training.hybrid.mixture import Mixture
from training.hybrid.report import LABEL, PREDICTED, rows_of
from training.hybrid.train import CHOSEN_ON, choose_weight, runner_of
from training.hybrid.views import VIEWS, View

SEEDS = (0, 1, 2)
OTHERS = ("S1", "S0")
"""Splits beside the one that chooses each seed's weight."""
RESULTS = Path(__file__).with_name("results")
RESAMPLES = 500
ERRORS = {"mape": "MAPE", "median_ape": "median", "macro_mape": "macro MAPE"}


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    work: Annotated[Path, typer.Option(help="folder of the training's examples and fits")],
    steps: Annotated[int, typer.Option(help="optimiser steps of each network")] = 2000,
    processes: Annotated[int | None, typer.Option(help="fits at once; one per core")] = None,
    out: Annotated[Path, typer.Option(help="folder of seeds.json and .md")] = RESULTS,
) -> None:
    """Fit what is missing, then write both files."""
    runner = runner_of(data, graphs, work, steps)
    splits = latency_splits(table_of(runner.examples))

    def fitted(name: str) -> dict[int, list[Task]]:
        tasks = {seed: runner.tasks(splits[name], (seed,)) for seed in SEEDS}
        runner.run([task for of_seed in tasks.values() for task in of_seed], processes)
        return tasks

    chosen = {seed: choose_weight(runner, tasks) for seed, tasks in fitted(CHOSEN_ON).items()}
    weights = {seed: weight for seed, (weight, _) in chosen.items()}
    lines = seed_lines(runner.examples, {seed: held for seed, (_, held) in chosen.items()})
    write(out, {"weights": weights, "lines": lines}, steps)
    for name in OTHERS:
        helds = {
            seed: runner.held_out(tasks, Mixture(weights[seed]), "shipped mean")
            for seed, tasks in fitted(name).items()
        }
        lines += seed_lines(runner.examples, helds)
        write(out, {"weights": weights, "lines": lines}, steps)


def seed_lines(
    examples: Examples, helds: Mapping[int, HeldOut], views: Sequence[View] = VIEWS
) -> list[dict[str, Any]]:
    """Return a line for each view that has rows: errors in percent, means over seeds.

    Args:
        examples: that positions in held-out rows count in.
        helds: predictions on one split, by seed.
        views: rows that belong in one line.
    """
    found = []
    for view in views:
        parts = {seed: rows_of(view, examples, held.rows) for seed, held in helds.items()}
        if all(len(part) for part in parts.values()):
            split = next(iter(helds.values())).split
            where = {"gpu": view.gpu, "data": f"{view.data} ({view.conditions})"}
            found.append({"split": SPLITS[split], **where, **_over_seeds(parts)})
    return found


def _over_seeds(parts: Mapping[int, pd.DataFrame]) -> dict[str, Any]:
    grouped = [
        grouped_errors(part[LABEL], part[PREDICTED], list(part["family_id"]))
        for part in parts.values()
    ]
    every = pd.concat(parts.values())
    low, high = bootstrap(
        every[LABEL], every[PREDICTED], list(every["arch_id"]), n_resamples=RESAMPLES
    )
    first = next(iter(parts.values()))
    return {
        "n": len(first),
        "architectures": int(first["arch_id"].nunique()),
        "seeds": sorted(parts),
        "mape": _spread(np.array([each.micro.mape for each in grouped])),
        "mape_ci95": [round(low, 2), round(high, 2)],
        "median_ape": _spread(np.array([each.micro.median_ape for each in grouped])),
        "macro_mape": _spread(np.array([each.macro.mape for each in grouped])),
    }


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    described = {"mean": values.mean(), "least": values.min(), "largest": values.max()}
    return {name: round(float(value), 2) for name, value in described.items()}


def write(out: Path, found: Mapping[str, Any], steps: int) -> None:
    """Write `seeds.json` and `seeds.md` to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    command = "python -m training.studies.seeds --data DATA --graphs GRAPHS --work WORK"
    command += f" --steps {steps}"
    document = {"command": command, "unit": "percent", **found}
    (out / "seeds.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (out / "seeds.md").write_text(_markdown(command, found["lines"]), encoding="utf-8")


def _markdown(command: str, lines: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "# Errors of the default predictor over seeds\n\n"
        f"`{command}`\n\n"
        "Held-out latency, errors in percent: mean over seeds (least to largest), and a 95 % "
        "interval of the mean MAPE over architectures.\n\n"
        f"| split | GPU | data | n | seeds | {' | '.join(ERRORS.values())} | 95 % |\n"
        f"|---|---|---|---|---|{'---|' * (len(ERRORS) + 1)}\n"
    )
    return head + "".join(_row(line) for line in lines)


def _row(line: Mapping[str, Any]) -> str:
    errors = ["{mean:.2f} ({least:.2f} to {largest:.2f})".format(**line[name]) for name in ERRORS]
    low, high = line["mape_ci95"]
    cells = [line["split"], line["gpu"], line["data"], line["n"], len(line["seeds"]), *errors]
    return f"| {' | '.join(str(cell) for cell in cells)} | {low:.1f} to {high:.1f} |\n"


if __name__ == "__main__":
    typer.run(main)
