"""`dippm compare`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import check_fit, errors_reported, on_command_line, progress_shown, show

if TYPE_CHECKING:
    from dippm.estimate.comparison import Comparison

MOST_LIST_BYTES = 16 << 20


@options.conditions()
def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Paths of model files, or library models."),
    ] = None,
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
        from dippm.estimate.batches import batches_of
        from dippm.estimate.model_list import Candidate, candidates_of

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
    """Return the rows; hints of errors are in the words of the command line."""
    document = table.to_dict()
    for row in document["rows"]:
        if row["error"]:
            row["error"]["hint"] = on_command_line(row["error"]["hint"])
    return document


def list_text(name: str) -> str:
    """Return the text of a list of models."""
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
