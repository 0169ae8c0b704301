"""Dependence of the default predictor's errors on the seed of its learners.

    python -m training.studies.seeds --data DATA --graphs GRAPHS --work WORK

WORK is the folder of the fits of `training.hybrid.train`: it has seed 0 of every fold, so that only
the other seeds are fitted. Folds without a whole model are left out. Every fit is stored, and
results are written after each split together with those of other splits of the same checkpoint
(`--split S1` runs one alone), so the command can be interrupted and repeated. Weight of the
network, memory and power are those of the checkpoint. Each seed is published as a checkpoint of one
member and asked as a user asks. A line has, for a table and a split, the mean error over seeds with
the least and the largest, a 95 % interval of the mean by bootstrap over architectures (all seeds of
an architecture go together), and the errors of the mean of as many seeds as the checkpoint has
members, as it is shipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import pandas as pd
import typer

from dataset.join.latency_splits import SPLITS
from dippm.estimate import pretrained
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.pretrained import find
from training.evaluation.held_out import HeldOut
from training.evaluation.metrics import bootstrap, grouped_errors
from training.hybrid.fit.network_fit import STEPS
from training.hybrid.judge.published_folds import published_held_out
from training.hybrid.judge.report import LABEL, PREDICTED, rows_of
from training.hybrid.judge.report_strata import STRATA, Stratum
from training.hybrid.rows.collected_rows import read_collected
from training.hybrid.rows.examples import Examples
from training.hybrid.rows.sources import load_rows
from training.hybrid.train import JUDGED_BY, runner_of
from training.hybrid.train import SEEDS as MEMBERS

Seeds = tuple[int, ...]
"""A single seed, or several whose predictions are averaged in the log."""
SEEDS = (0, 1, 2)
COMPARED: tuple[Seeds, ...] = (*((seed,) for seed in SEEDS), MEMBERS)
COMPARED_ON = JUDGED_BY
RESULTS = Path(__file__).with_name("results")
RESAMPLES = 500
ERRORS = {"mape": "MAPE", "median_ape": "median", "macro_mape": "macro MAPE"}


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    work: Annotated[Path, typer.Option(help="folder of the training's examples and fits")],
    steps: Annotated[int, typer.Option(help="optimiser steps of each network")] = STEPS,
    split: Annotated[list[str] | None, typer.Option(help="split to do; may be given again")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="folder of what the training wrote; the default predictor")
    ] = None,
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own that trained it; may be given again")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="fits at once; one per core")] = None,
    out: Annotated[Path, typer.Option(help="folder of seeds.json and .md")] = RESULTS,
) -> None:
    """Fit the missing seeds, then write both files."""
    unknown = set(split or ()) - set(SPLITS)
    if unknown:
        raise typer.BadParameter(f"no split {', '.join(unknown)}; there are {', '.join(SPLITS)}")
    info, predictor = find(checkpoint), pretrained.load(checkpoint).predictor
    assert isinstance(predictor, Hybrid)
    assert isinstance(predictor.memory, MemoryModel)
    memory, power = predictor.memory, predictor.power
    weight = float(info.config["law"]["network_weight"])
    sets = [read_collected(folder, graphs) for folder in collected or ()]
    runner, graph = runner_of(data, graphs, work, steps, sets), load_rows(data, graphs)[1]
    splits = runner.splits()
    is_model = runner.examples.is_model
    for name in split or COMPARED_ON:
        every = [task for task in runner.tasks(splits[name], SEEDS) if is_model[task.asked].any()]
        runner.run(every, processes)
        held_out_sets = {}
        for seeds in COMPARED:
            tasks = {name: [task for task in every if task.seed in seeds]}
            answers = published_held_out(
                runner, tasks, graph, weight=weight, memory=memory, power=power
            )
            held_out_sets[seeds] = answers[name]
        write(out, f"{info.name} {info.version}", seed_lines(runner.examples, held_out_sets), steps)


def seed_lines(
    examples: Examples, held_out_sets: Mapping[Seeds, HeldOut], strata: Sequence[Stratum] = STRATA
) -> list[dict[str, Any]]:
    """Return a line for each stratum that has rows: errors in percent, means over seeds.

    Args:
        examples: examples that positions in held-out rows refer to.
        held_out_sets: predictions on one split, by each seed alone and by MEMBERS together.
        strata: groups of rows, one line each.
    """
    found: list[dict[str, Any]] = []
    split = SPLITS[held_out_sets[MEMBERS].split]
    for stratum in strata:
        parts = {
            seeds: rows_of(stratum, examples, held.rows) for seeds, held in held_out_sets.items()
        }
        if len(parts[MEMBERS]):
            where = {"gpu": stratum.gpu, "data": f"{stratum.data} ({stratum.conditions})"}
            found.append({"split": split, **where, **_over_seeds(parts)})
    return found


def _over_seeds(parts: Mapping[Seeds, pd.DataFrame]) -> dict[str, Any]:
    alone = {seeds[0]: part for seeds, part in parts.items() if len(seeds) == 1}
    every = pd.concat(alone.values())
    low, high = bootstrap(
        every[LABEL], every[PREDICTED], list(every["arch_id"]), n_resamples=RESAMPLES
    )
    members = parts[MEMBERS]
    together, each = _errors(members), [_errors(part) for part in alone.values()]
    return {
        "n": len(members),
        "architectures": int(members["arch_id"].nunique()),
        "seeds": sorted(alone),
        **{name: _spread([errors[name] for errors in each]) for name in ERRORS},
        "mape_ci95": [round(low, 2), round(high, 2)],
        "members": {name: round(error, 2) for name, error in together.items()},
    }


def _errors(part: pd.DataFrame) -> dict[str, float]:
    """Return the errors named in ERRORS."""
    found = grouped_errors(part[LABEL], part[PREDICTED], list(part["family_id"]))
    values = found.micro.mape, found.micro.median_ape, found.macro.mape
    return dict(zip(ERRORS, values, strict=True))


def _spread(values: Sequence[float]) -> dict[str, float]:
    described = {"mean": fmean(values), "least": min(values), "largest": max(values)}
    return {name: round(value, 2) for name, value in described.items()}


def write(
    out: Path, checkpoint: str, lines: Sequence[Mapping[str, Any]], steps: int = STEPS
) -> None:
    """Write lines to `seeds.json` and `seeds.md` of a folder, in place of those of their split.

    Args:
        out: folder of the files.
        checkpoint: name and version; lines of another one are dropped.
        lines: lines of `seed_lines`.
        steps: number of optimiser steps of each network.
    """
    out.mkdir(parents=True, exist_ok=True)
    path, new = out / "seeds.json", {line["split"] for line in lines}
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = before["lines"] if before.get("checkpoint") == checkpoint else []
    every = [*(line for line in kept if line["split"] not in new), *lines]
    every.sort(key=lambda line: str(line["split"]))  # stable: strata keep their order
    command = "python -m training.studies.seeds --data DATA --graphs GRAPHS --work WORK"
    command += f" --steps {steps}"
    document = {"command": command, "checkpoint": checkpoint, "unit": "percent", "lines": every}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (out / "seeds.md").write_text(_markdown(command, checkpoint, every), encoding="utf-8")


def _markdown(command: str, checkpoint: str, lines: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "# Errors of the default predictor over seeds\n\n"
        f"`{command}` ({checkpoint})\n\n"
        "Held-out latency, errors in percent. Of one seed: mean over seeds (least to largest), and "
        "a 95 % interval of the mean MAPE over architectures. Of the mean of "
        f"{len(MEMBERS)} seeds, as many as the checkpoint has members: MAPE / median / macro.\n\n"
        f"| split | GPU | data | n | seeds | {' | '.join(ERRORS.values())} | 95 % "
        f"| mean of {len(MEMBERS)} |\n"
        f"|---|---|---|---|---|{'---|' * (len(ERRORS) + 2)}\n"
    )
    return head + "".join(_row(line) for line in lines)


def _row(line: Mapping[str, Any]) -> str:
    errors = ["{mean:.2f} ({least:.2f} to {largest:.2f})".format(**line[name]) for name in ERRORS]
    low, high = line["mape_ci95"]
    cells = [line["split"], line["gpu"], line["data"], line["n"], len(line["seeds"]), *errors]
    together = " / ".join(f"{line['members'][name]:.2f}" for name in ERRORS)
    return f"| {' | '.join(map(str, cells))} | {low:.1f} to {high:.1f} | {together} |\n"


if __name__ == "__main__":
    typer.run(main)
