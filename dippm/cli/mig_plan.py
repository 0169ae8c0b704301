"""`dippm mig plan`."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.choose import MaxMemory, SloAt, SloMs
from dippm.cli.compare import list_text
from dippm.cli.output import error_document, errors_reported, show
from dippm.cli.progress import progress_shown


@options.conditions("mig")  # the slices are the answer
def mig_plan(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Paths of model files, or library models."),
    ] = None,
    models_from: options.ModelsFrom = None,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    mps: Annotated[
        int,
        typer.Option(
            "--mps",
            metavar="PROCESSES",
            help="Processes of each model, which share the slice of the model by MPS.",
        ),
    ] = 1,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Pack models onto the MIG slices of one GPU by predicted memory and latency.

    A model without a slice is a row with its reason, and exit code 1. No GPU is changed.
    """
    if not models and models_from is None:
        raise typer.BadParameter("no model: give model files or names, or --from FILE")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.choice import pack
        from dippm.estimate.model_list import Candidate, candidates_of

        cases = [Candidate(model) for model in models or ()]
        if models_from is not None:
            cases += candidates_of(list_text(models_from))
        packing = pack(
            cases,
            slo_ms=slo_ms,
            slo_at=cast(Any, slo_at),
            max_memory_mb=max_memory_mb,
            copies=mps,
            **asked,
        )
    rows = [
        model.row() | {"error": error_document(model.error) if model.error else None}
        for model in packing.models
    ]
    document = packing.to_dict() | {"models": rows}
    show("mig-plan", packing, json=json, csv=csv, html=html, document=document)
    if packing.left_out:
        raise typer.Exit(1)
