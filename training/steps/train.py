"""Trains and evaluates the predictor of training steps, and writes its checkpoint.

    python -m training.steps.train --data ../shared/data --graphs build/graphs \
        --inference checkpoints/hybrid-gpu/<version> --inference-work build \
        --out checkpoints/hybrid-gpu-train/<version>

It starts from a finished training of the predictor of inference: from its checkpoint, and from the
fits of its folds in its work folder, so that what is held out here was held out there. Kernels of
the measured steps and every fit are kept under --work; a run that was cut off goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataset.join.graph_store import GraphStore
from dippm.models.memory import MemoryModel
from dippm.pretrained.store import read_info
from training.steps.base import InferenceFits
from training.steps.examples import load_steps
from training.steps.fit import StepSettings
from training.steps.folds import StepRunner
from training.steps.memory import fit_step_memory, installed, step_memory_samples
from training.steps.publish import publish
from training.steps.rows import step_rows
from training.steps.splits import StepFold, step_folds


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    inference: Annotated[Path, typer.Option(help="checkpoint of inference to start from")],
    inference_work: Annotated[Path, typer.Option(help="work folder of its training")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write")],
    work: Annotated[Path, typer.Option(help="cache of examples and fits")] = Path("build/steps"),
    processes: Annotated[int, typer.Option(help="that expand kernels side by side")] = 1,
    since: Annotated[Path | None, typer.Option(help="earlier version, to compare with")] = None,
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = "First version.",
) -> None:
    """Train, evaluate, and write the checkpoint."""
    store = GraphStore(graphs)
    examples = load_steps(
        work, lambda: (step_rows(data, store.__contains__), store.__getitem__), processes
    )
    info = read_info(inference)
    if "effects" in info.config["law"]:
        raise typer.BadParameter(
            f"{info.name} {info.version} has effects of GPUs by unit, which the fit of steps does "
            "not read yet: name a version with terms of tables, up to 0.9.1"
        )
    fits = InferenceFits(inference_work, info.config)
    runner = StepRunner(examples, fits, work / "fits", StepSettings())
    folds: dict[str, list[StepFold]] = {}
    for fold in step_folds([step.row for step in examples.rows], fits):
        folds.setdefault(fold.split, []).append(fold)
    runner.run([fold for of_split in folds.values() for fold in of_split])
    context = MemoryModel.from_config(info.config["memory"])
    publish(
        out,
        examples=examples,
        inference=info,
        fitted=runner.shipped(),
        settings=runner.settings,
        folds=folds,
        helds={name: runner.held_out(of_split) for name, of_split in folds.items()},
        memory=fit_step_memory(
            step_memory_samples(data, store), context, installed(context, data, store)
        ),
        since=since,
        changes=changes,
    )
    typer.echo(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
