"""Trains and evaluates the default predictor, and writes its checkpoint.

    python -m training.hybrid.train --data ../shared/data --graphs build/graphs \
        --out checkpoints/hybrid-gpu/<version> [--collected dataset/data/<device>]

Steps: power and memory models, measured rows → examples (cached under --work), fits of every
learner on every fold of every split, the shipped ensemble on all rows, each fold published and
asked through the shipped door for the rows that it did not see, intervals from those errors,
checkpoint, and a page of held-out errors. Every fit is kept under --work, and so are the answers,
row by row, and the page; a run that was cut off goes on where it stopped. Sets of our own
(--collected, one folder for each GPU) teach the law that all GPUs share, kernel by kernel, and what
their GPUs have of their own: time, power, memory.

    --splits L --splits S1      judge by other splits than those of JUDGED_BY: each fold costs a fit

Sources whose tables are not in --data are named, with what there is then no line of, and so on the
card: see `training.hybrid.rows.absent_sources`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dataset.join.latency_splits import HASHES, SPLITS, hashes_of
from dataset.join.splits import Split
from dataset.measured.location import DataNotFoundError
from dippm.cli.output import errors_reported
from training.evaluation.held_out import HeldOut, write_held_out
from training.evaluation.report import PAGE, write_page
from training.hybrid.fit.checkpoint_law import checkpoint_laws
from training.hybrid.fit.folds import LEARNERS, SHIPPED, Runner, Settings, Task
from training.hybrid.fit.memory import fit_memory
from training.hybrid.fit.mixture import Mixture, Single
from training.hybrid.fit.network_fit import STEPS, FitSettings
from training.hybrid.fit.power import energy_lines, evaluate, measured_power
from training.hybrid.fit.trees import TreeSettings
from training.hybrid.judge.baselines import baselines
from training.hybrid.judge.calibrated import calibrated
from training.hybrid.judge.held_out_rows import held_out_rows
from training.hybrid.judge.published_folds import published_held_out
from training.hybrid.publish import Evaluation, limits_of, publish
from training.hybrid.rows.absent_sources import absent_sources
from training.hybrid.rows.collected_examples import load_collected
from training.hybrid.rows.collected_rows import CollectedSet, read_collected
from training.hybrid.rows.example_cache import digest_of as examples_of
from training.hybrid.rows.examples import join_examples
from training.hybrid.rows.sources import load_examples, load_rows
from training.provenance import check_is_new, describe_making

DEFAULT = "hybrid-gpu"
"""Name of the checkpoint whose splits are committed, see `dataset.join.latency_splits`."""
SEEDS = (0, 1)
SEEDS_OF = {"L": SEEDS, "S3a": SEEDS}
"""Seeds of a split's fits; one unless it says more.

What is learned of a GPU or of a laboratory that no row shows depends on the seed far more than all
else, so whole models are predicted by as many members as are shipped. A laboratory that measured
operators alone has one seed.
"""
JUDGED_BY = ("L", "S2-10", "S3a")
"""Splits that answer what a user asks: a measured GPU in another laboratory, a kind of model never
seen, a GPU never measured."""
COMPARED_ON = ("S1",)
"""Splits on which each kernel is also seen alone, without a graph."""
WEIGHTS = (0.0, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0)
"""Of the graph network in the mean with the trees, far from what was measured, to choose from."""
CHOSEN_ON = ("S2-10", "L")
"""Splits on whose rows the weight is chosen: the first of them that is judged by."""
LABORATORIES = "L"
"""Split whose held-out latencies the errors of energy are worked out with."""


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write", callback=check_is_new)],
    work: Annotated[Path, typer.Option(help="cache of examples and fits")] = Path("build"),
    steps: Annotated[int, typer.Option(min=10, help="optimiser steps of each network")] = STEPS,
    since: Annotated[Path | None, typer.Option(help="earlier version, to compare with")] = None,
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = "First version.",
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own, of one GPU; may be given again")
    ] = None,
    splits: Annotated[
        list[str] | None,
        typer.Option(help="split to judge by, instead of JUDGED_BY; may be given again"),
    ] = None,
) -> None:
    """Train, evaluate, and write the checkpoint."""
    absent = absent_sources(data, ours=bool(collected))
    for limit, source in zip(limits_of(absent), absent, strict=True):
        typer.echo(f"{limit} {source.remedy}".rstrip(), err=True)
    sets = [read_collected(folder, graphs) for folder in collected or ()]
    for found in sets:
        typer.echo(found)
    samples = measured_power(data, graphs, sets)
    power, power_lines = evaluate(samples)
    memory, memory_report = fit_memory(data, graphs, sets)
    runner = runner_of(data, graphs, work, steps, sets)
    graph = load_rows(data, graphs)[1]
    hashes = hashes_of(runner.splits(), work / "splits")
    tasks = judged_tasks(runner, splits)
    chosen = next((name for name in CHOSEN_ON if _tests_models(runner, tasks.get(name, ()))), None)
    if chosen is None:
        raise DataNotFoundError(
            f"no fold of {' or '.join(CHOSEN_ON)} holds whole models out: nothing could be judged",
            "`python -m dataset.fetch` gets tables of more laboratories and models.",
        )
    shipped = shipped_tasks(runner)
    runner.run([*shipped, *(task for of_split in tasks.values() for task in of_split)])
    weight = choose_weight(runner, tasks[chosen])
    held_out_sets = published_held_out(
        runner, tasks, graph, weight=weight, memory=memory, power=power
    )
    if LABORATORIES in held_out_sets:
        latency = held_out_sets[LABORATORIES].rows
        power_lines += energy_lines(samples, latency, SPLITS[LABORATORIES])
    rows = held_out_rows(runner, held_out_sets, tasks, Mixture(weight))
    written = write_held_out(work, rows)
    publish(
        out,
        runner=runner,
        law=checkpoint_laws(runner, [shipped], weight, graph)[0],
        evaluation=evaluation_of(runner, held_out_sets, tasks, weight, hashes),
        power=(power, power_lines),
        memory=(memory, memory_report),
        absent=absent,
        made=describe_making(
            "training.hybrid.train",
            out,
            {
                "data": data,
                "graphs": graphs,
                "work": work,
                "steps": None if steps == STEPS else steps,
                "collected": collected,
                "splits": splits,
            },
        )
        | {"rows_and_graphs": examples_of(runner.examples.rows, graphs)},
        since=since,
        changes=changes,
    )
    if out.resolve().parent == HASHES.parents[2] / "checkpoints" / DEFAULT:
        HASHES.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    page = write_page(work / PAGE, rows, checkpoint=out)
    typer.echo(f"wrote {out}, {written} and {page}")


def judged_tasks(runner: Runner, splits: Sequence[str] | None = None) -> dict[str, list[Task]]:
    """Return the fits of folds that a training is judged by, by split.

    Args:
        runner: runner of the rows.
        splits: names of splits instead of JUDGED_BY.

    Raises:
        BadParameter: if a split is not known, or if none of CHOSEN_ON is among them.
    """
    every = runner.splits()
    found = {}
    for name in _judged_by(splits, every):
        learners = LEARNERS if name in COMPARED_ON else SHIPPED
        tasks = runner.tasks(every[name], SEEDS_OF.get(name, (0,)), learners)
        is_model = runner.examples.is_model
        tasks = [task for task in tasks if not task.seed or is_model[task.asked].any()]
        found[name] = _fitted_folds(runner, tasks)
    return {name: tasks for name, tasks in found.items() if tasks}


def shipped_tasks(runner: Runner) -> list[Task]:
    """Return the fits of all rows, one for each member that ships."""
    everything, nothing = np.flatnonzero(runner.is_others), np.array([], dtype=np.int64)
    return [
        Task("shipped", "all", everything, nothing, seed, own_train=runner.own) for seed in SEEDS
    ]


def evaluation_of(
    runner: Runner,
    held_out_sets: Mapping[str, HeldOut],
    tasks: Mapping[str, Sequence[Task]],
    weight: float,
    hashes: Mapping[str, str],
) -> Evaluation:
    """Return what was found on rows that did not train, beside learners alone and baselines."""
    mixed = Mixture(weight)
    of_others = [part for part in tasks.values() if any(len(task.test) for task in part)]
    return Evaluation(
        held_out_sets=held_out_sets,
        with_own_terms=[runner.held_out(part, mixed, "shipped mean") for part in of_others],
        learners={
            learner: [
                runner.held_out(part, Single(learner), learner)
                for part in of_others
                if learner in part[0].learners
            ]
            for learner in LEARNERS
        },
        baselines=baselines(runner.examples, tasks),
        calibrated=calibrated(
            runner, [task for task in tasks.get("S3a", ()) if not task.seed], mixed
        ),
        hashes={name: hashes[name] for name in tasks},
    )


def _judged_by(asked: Sequence[str] | None, known: Mapping[str, Split]) -> Sequence[str]:
    """Return the names of splits that were asked for; JUDGED_BY without any."""
    unknown = sorted(set(asked or ()) - set(known))
    if unknown:
        raise typer.BadParameter(f"no split {unknown[0]!r}: {', '.join(known)}")
    if asked and not set(asked).intersection(CHOSEN_ON):
        raise typer.BadParameter(f"one of the splits must be {' or '.join(CHOSEN_ON)}")
    return asked or JUDGED_BY


def _fitted_folds(runner: Runner, tasks: Sequence[Task]) -> list[Task]:
    """Return the fits of folds with whole models to train and rows to test; name the other folds.

    With every table at hand there is no other.
    """
    is_model = runner.examples.is_model
    found, left = [], {}
    for task in tasks:
        if len(task.asked) and is_model[task.train].any():
            found.append(task)
        else:
            left[task.fold] = "no row is tested" if not len(task.asked) else "no whole model trains"
    for fold, why in left.items():
        typer.echo(f"No fit of {tasks[0].split} {fold}: {why} in it.", err=True)
    return found


def _tests_models(runner: Runner, tasks: Sequence[Task]) -> bool:
    """Tell whether a whole model is held out."""
    return any(runner.examples.is_model[task.test].any() for task in tasks)


def runner_of(
    data: Path, graphs: Path, work: Path, steps: int, sets: Sequence[CollectedSet] = ()
) -> Runner:
    """Return what fits on all rows, those of our own sets included, and keeps its fits in `work`.

    Args:
        data: folder of measured tables.
        graphs: folder of raw graphs.
        work: cache of examples and fits. Those of other tables, graphs or settings are left alone:
            the names of folders say what they are of.
        steps: optimiser steps of each network.
        sets: our collected sets.
    """
    ours = [load_collected(found, graphs, work) for found in sets]
    examples = load_examples(data, graphs, work)
    if ours:
        examples = join_examples([examples, *ours])
    settings = Settings(FitSettings(steps=steps), TreeSettings())
    given = json.dumps([asdict(settings), examples_of(examples.rows, graphs)])
    fits = work / f"fits-{hashlib.sha256(given.encode()).hexdigest()[:12]}"
    return Runner(examples, fits, settings)


def choose_weight(runner: Runner, tasks: Sequence[Task]) -> float:
    """Return the network's weight in the mean whose errors on held-out models are least."""

    def error(weight: float) -> float:
        rows = runner.held_out(tasks, Mixture(weight), "shipped mean").rows
        rows = rows[runner.examples.is_model[rows["position"]]]
        ape = (rows["predicted latency_ms"] / rows["latency_ms"] - 1).abs()
        return float(ape.groupby(rows["family_id"]).mean().mean())

    return min(WEIGHTS, key=error)


if __name__ == "__main__":
    typer.run(errors_reported(as_json=False)(main))
