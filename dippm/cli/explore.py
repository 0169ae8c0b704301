"""`dippm explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, progress_shown, ready_to_plot, show, write_files


def explore(
    space: Annotated[
        Path,
        typer.Argument(
            metavar="SPACE",
            help="TOML file with models, batch, precision, device, mig, objectives, constraints.",
        ),
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", help="Total number of designs to try.", show_default="200, or all"
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option("--sampler", help="Search algorithm: nsga2, tpe, random or grid.")
    ] = "nsga2",
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the sampler.")] = 0,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Database of the search, which can be resumed from it: sqlite:///search.db.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the study in the storage.")
    ] = "dippm",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Number of worker processes; 0: none. Default: one per processor.",
            min=0,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", help="Ray cluster that runs the workers: its address, auto or local."
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Resume a search that another machine started.")
    ] = False,
    checkpoint: options.CheckpointName = None,
    surrogate: Annotated[
        str | None,
        typer.Option(
            "--surrogate", help="Checkpoint that screens all designs first, such as pmgns-a100."
        ),
    ] = None,
    confirm: Annotated[
        int,
        typer.Option(
            "--confirm", help="With --surrogate: number of best designs to predict in full.", min=1
        ),
    ] = 32,
    trust: options.Trust = False,
    csv: options.Csv = None,
    html: options.Html = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Search models, batch sizes, precisions and devices for the best designs under limits."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.exploration import NoFeasibleDesignError
        from dippm.decide.exploration import explore as answer
        from dippm.decide.exploration.space_file import read_space

        asked = read_space(space)
        try:
            found = answer(
                asked.space,
                asked.objectives,
                asked.constraints,
                trials=trials,
                sampler=sampler,
                seed=seed,
                storage=storage,
                name=name,
                workers=workers,
                cluster=cluster,
                take_over=take_over,
                surrogate=surrogate,
                confirm=confirm,
                checkpoint=checkpoint,
                trust=trust,
                timeout_s=timeout_s,
                memory_limit_mb=memory_limit_mb,
            )
        except NoFeasibleDesignError as error:
            write_files(error.exploration, csv=csv, html=html)
            raise
    show("explore", found, json=json, csv=csv, html=html)
