"""`dippm share`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from dippm.base.written import decimal_number, whole_number
from dippm.cli import options
from dippm.cli.compare import list_text
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown
from dippm.errors import shortened

ALL = "all"


@options.conditions()
def share(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Paths of model files, or library models; one process per model."
        ),
    ] = None,
    models_from: options.ModelsFrom = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing", help="time-slicing, mps or mig. Default: mps, with --slices mig."
        ),
    ] = None,
    mps: Annotated[
        str | None,
        typer.Option(
            "--mps",
            metavar="PERCENT",
            help="MPS limits: percentages of the GPU's threads, one per process, such as 50,50; "
            "all: no limits.",
        ),
    ] = None,
    slices: Annotated[
        str | None,
        typer.Option(
            "--slices", metavar="SLICES", help="MIG slices, one per process: 3g.20gb,4g.20gb."
        ),
    ] = None,
    copies: Annotated[
        int, typer.Option("--copies", "-n", help="Number of copies of the whole set of processes.")
    ] = 1,
    batch: Annotated[
        str,
        typer.Option("--batch", "-b", help="Samples per forward pass: one size, or one per model."),
    ] = "1",
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict slow-down, memory and energy of processes that share one GPU.

    Exit code 1 if the processes do not fit the memory at their 99 % bounds.
    """
    asked["batch"] = [int(size) for size in _numbers(batch, whole_number, "--batch")]
    if not models and models_from is None:
        raise typer.BadParameter("no model: give model files or names, or --from FILE")
    if mps is not None and slices is not None:
        raise typer.BadParameter("--mps and --slices exclude each other")
    percentages = None
    if mps is not None and mps.strip().casefold() != ALL:
        percentages = _numbers(mps, decimal_number, "--mps")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.sharing import share as answer
        from dippm.estimate.model_list import Candidate, candidates_of

        cases = [Candidate(model) for model in models or ()]
        if models_from is not None:
            cases += candidates_of(list_text(models_from))
        shared = answer(
            cases,
            sharing=sharing or ("mig" if slices is not None else "mps"),
            percentages=percentages,
            slices=None if slices is None else options.split_list(slices),
            copies=copies,
            **asked,
        )
    show("share", shared, json=json, csv=csv, html=html)
    if not shared.feasible:
        raise typer.Exit(1)


def _numbers(text: str, read: Callable[[str], float], option: str) -> list[float]:
    """Parse a comma-separated list of numbers.

    Raises:
        BadParameter: if one is not a number.
    """
    try:
        return [read(part.removesuffix("%")) for part in options.split_list(text)]
    except ValueError:
        raise typer.BadParameter(
            f"{shortened(text)!r} is not a list of numbers", param_hint=option
        ) from None
