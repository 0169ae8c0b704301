"""Trains and evaluates the predictor of training steps, and writes its checkpoint.

    python -m training.steps.train --data ../shared/data --graphs build/graphs \
        --inference checkpoints/hybrid-gpu/<version> --inference-work build \
        --out checkpoints/hybrid-gpu-train/<version> [--collected dataset/data/<device>]

It starts from a finished training of the predictor of inference: from its checkpoint, and from the
published folds in its work folder, so that what is held out here was held out there. Each fold is
published and asked as what ships. Sets of our own teach as other tables do: those that taught
inference are given again, for its folds are those of that training. Kernels of the measured steps
and every fit are kept under --work; a run that was cut off goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dataset.join.graph_store import GraphStore
from dippm.estimate import pretrained
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.pretrained.store import read_info
from training.hybrid.judge.published_folds import publish_folds
from training.hybrid.rows.collected_examples import digest_of
from training.hybrid.rows.collected_rows import read_collected
from training.hybrid.rows.examples import GraphLookup
from training.hybrid.rows.sources import load_rows
from training.hybrid.train import runner_of
from training.provenance import check_is_new, describe_making
from training.steps.examples import load_steps
from training.steps.fit import StepSettings
from training.steps.folds import StepRunner
from training.steps.memory import (
    collected_step_memory,
    fit_step_memory,
    installed,
    step_memory_samples,
)
from training.steps.publish import publish
from training.steps.rows import StepRow, collected_operator_rows, collected_step_rows, step_rows
from training.steps.splits import FAMILIES, InferenceFold, step_folds


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    inference: Annotated[Path, typer.Option(help="checkpoint of inference to start from")],
    inference_work: Annotated[Path, typer.Option(help="work folder of its training")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write", callback=check_is_new)],
    work: Annotated[Path, typer.Option(help="cache of examples and fits")] = Path("build/steps"),
    processes: Annotated[int, typer.Option(help="that expand kernels side by side")] = 1,
    since: Annotated[Path | None, typer.Option(help="earlier version, to compare with")] = None,
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = "First version.",
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own, of one GPU; may be given again")
    ] = None,
) -> None:
    """Train, evaluate, and write the checkpoint."""
    sets = [read_collected(folder, graphs, phase="train") for folder in collected or ()]
    for found in sets:
        typer.echo(found)
    store = GraphStore(graphs)

    def measured() -> tuple[list[StepRow], GraphLookup]:
        ours = [
            step
            for found in sets
            for step in (*collected_step_rows(found, store), *collected_operator_rows(found, store))
        ]
        return [*step_rows(data, store.__contains__), *ours], store.__getitem__

    examples = load_steps(work, measured, processes, sets=digest_of(sets))
    info = read_info(inference)
    folds = step_folds(
        examples.rows,
        inference,
        inference_folds(data, graphs, inference_work, inference, collected or ()),
    )
    context = MemoryModel.from_config(info.config["memory"])
    memory = fit_step_memory(
        [
            *step_memory_samples(data, store),
            *(sample for found in sets for sample in collected_step_memory(found, store)),
        ],
        context,
        installed(context, data, store),
    )
    settings = StepSettings()
    given = repr((info.config["sha256"], settings, [row.row_id for row in examples.rows]))
    fits = work / f"fits-{hashlib.sha256(given.encode()).hexdigest()[:12]}"
    runner = StepRunner(examples, fits, settings, memory[0], store.__getitem__)
    helds = {name: runner.held_out(of_split) for name, of_split in folds.items()}
    publish(
        out,
        examples=examples,
        inference=info,
        fitted=runner.shipped(inference),
        settings=runner.settings,
        folds=folds,
        helds=helds,
        with_own_terms={name: runner.with_own_terms(of_split) for name, of_split in folds.items()},
        memory=memory,
        made=describe_making(
            "training.steps.train",
            out,
            {
                "data": data,
                "graphs": graphs,
                "inference": f"checkpoints/{info.name}/{info.version}",
                "inference-work": inference_work,
                "collected": collected,
            },
        ),
        since=since,
        changes=changes,
    )
    typer.echo(f"wrote {out}")


def inference_folds(
    data: Path, graphs: Path, work: Path, inference: Path, collected: Sequence[Path] = ()
) -> list[InferenceFold]:
    """Return the published folds of inference that hold families out.

    Args:
        data: folder of measured tables.
        graphs: folder of raw graphs.
        work: work folder of the training of inference; folds that it lacks are fitted.
        inference: the checkpoint that the training ended with.
        collected: sets of our own that taught it.
    """
    predictor = pretrained.load(inference).predictor
    assert isinstance(predictor, Hybrid)
    assert isinstance(predictor.memory, MemoryModel)
    steps = predictor.config["training"]["fit"]["steps"]
    sets = [read_collected(folder, graphs) for folder in collected]
    runner = runner_of(data, graphs, work, steps, sets)
    rows = runner.examples.rows
    tasks = runner.tasks(runner.splits()[FAMILIES], (0,))
    runner.run(tasks)
    folders = publish_folds(
        runner,
        tasks,
        load_rows(data, graphs)[1],
        weight=float(predictor.config["law"]["network_weight"]),
        memory=predictor.memory,
        power=predictor.power,
    )
    return [
        InferenceFold(
            task.fold,
            folders[task.split, task.fold],
            frozenset(rows[i].family for i in task.test),
            frozenset(rows[i].architecture for i in task.test),
        )
        for task in tasks
    ]


if __name__ == "__main__":
    typer.run(main)
