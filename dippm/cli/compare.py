"""`dippm compare`, `dippm sweep` and `dippm explore`: predictions under many conditions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dippm.base.written import whole_number
from dippm.cli import options
from dippm.cli.output import (
    check_fit,
    errors_reported,
    on_command_line,
    progress_shown,
    ready_to_plot,
    show,
    write_files,
)

if TYPE_CHECKING:
    from dippm.estimate.comparison import Comparison

MOST_LIST_BYTES = 16 << 20
"""Maximum size of a list of models."""


@options.conditions()
def compare(
    models: options.Models = None,
    models_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Also read models from a file: one model per line, or a CSV with the columns "
            "model, input, batch, framework. -: standard input.",
        ),
    ] = None,
    batch: Annotated[
        str,
        typer.Option(
            "--batch", "-b", help="Batch sizes: list 1,8,32, powers of two 1:1024, or steps 8:64:8."
        ),
    ] = "1",
    device: options.Devices = "A100",
    precision: options.Precisions = "fp32",
    mig: Annotated[
        str | None,
        typer.Option("--mig", help="MIG slices, separated by commas; full: the whole GPU."),
    ] = None,
    framework: options.Framework = None,
    *,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with code 1 if any prediction fails, not only if all fail."
        ),
    ] = False,
    require_fit: options.RequireFit = False,
    sort: Annotated[
        str | None, typer.Option("--sort", help="Column to sort by, such as latency_ms.")
    ] = None,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict several models for every device, MIG slice, precision and batch size.

    A failed prediction is a row with its reason. Exit code 1 if all predictions fail.
    """
    from dippm.estimate.prediction import COLUMNS

    if sort and sort not in COLUMNS:
        raise typer.BadParameter(f"{sort!r} is not a column; columns: {', '.join(COLUMNS)}")
    if not models and models_from is None:
        raise typer.BadParameter("no model: give model files or names, or --from FILE")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.api import compare as answer
        from dippm.estimate.model_list import Candidate, batches_of, candidates_of

        cases = [Candidate(model, framework=framework) for model in models or ()]
        if models_from is not None:
            listed = candidates_of(list_text(models_from))
            cases += [replace(case, framework=case.framework or framework) for case in listed]
        table = answer(
            cases,
            device=options.split_list(device),
            batch=batches_of(batch),
            precision=options.split_list(precision),
            mig=[None if name == "full" else name for name in options.split_list(mig or "full")],
            **asked,
        )
        table = table.sorted_by(sort) if sort else table
    show("compare", table, json=json, csv=csv, html=html, document=_document(table))
    if require_fit:
        check_fit(table.predictions)
    if table.failures and (strict or require_fit or not table.predictions):
        raise typer.Exit(1)


def _document(table: Comparison) -> dict[str, Any]:
    """Return the document of a comparison, with hints of errors rephrased as options."""
    document = table.to_dict()
    for row in document["rows"]:
        if row["error"]:
            row["error"]["hint"] = on_command_line(row["error"]["hint"])
    return document


def list_text(name: str) -> str:
    """Return the text of a list of models; "-" is standard input.

    Raises:
        ModelListError: if the list cannot be read or is too large.
    """
    from dippm.estimate.model_list import ModelListError

    try:
        if name == "-":
            content = sys.stdin.buffer.read(MOST_LIST_BYTES + 1)
        else:
            with Path(name).expanduser().open("rb") as file:
                content = file.read(MOST_LIST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelListError(
            f"cannot read {name}: {reason}", "Give --from another file."
        ) from error
    if len(content) > MOST_LIST_BYTES:
        raise ModelListError(
            f"{name} is larger than {MOST_LIST_BYTES >> 20} MiB", "Is it a list of models?"
        )
    return content.decode("utf-8-sig", errors="surrogateescape")


@options.conditions()
def sweep(
    model: options.Source,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            "-b",
            metavar="SIZES",
            help="Batch sizes: powers of two 1:1024, steps 8:128:8, or a list 1,8,32; with "
            "--power-limit a single size.",
            show_default="1:1024",
        ),
    ] = None,
    power_limit: Annotated[
        str | None,
        typer.Option(
            "--power-limit",
            metavar="WATTS",
            help="Sweep the power limit of the board in W instead: 100:400, 100:400:50 or 150,200. "
            "Values below the default limit are estimates.",
        ),
    ] = None,
    *,
    require_fit: options.RequireFit = False,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict a model over batch sizes and find the largest that fits, or over power limits."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        if power_limit is None:
            from dippm.decide.batch_sweep import DEFAULT_BATCHES
            from dippm.decide.batch_sweep import sweep as answer

            found: Any = answer(model, batch=batch or DEFAULT_BATCHES, **asked)
        else:
            from dippm.decide.power_sweep import sweep_power

            size = _single_size(batch or "1")
            found = sweep_power(model, limits_w=power_limit, batch=size, **asked)
    name = "sweep" if power_limit is None else "power-sweep"
    show(name, found, json=json, csv=csv, html=html)
    if require_fit:
        check_fit(found.predictions if power_limit is None else [found.prediction])


def _single_size(batch: str) -> int:
    try:
        return whole_number(batch)
    except ValueError:
        raise typer.BadParameter("--power-limit requires a single batch size") from None


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
