"""`dippm mig plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.choose import MaxMemory, SloAt, SloMs
from dippm.cli.compare import list_text
from dippm.cli.output import error_document, errors_reported, print_json, print_remarks
from dippm.cli.progress import progress_shown


def mig_plan(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Model files or names.")
    ] = None,
    models_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Also the models that a file lists, each with its own input and batch, as "
            "`dippm compare --from` takes it.",
        ),
    ] = None,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    batch: options.Batch = 1,
    input: options.Input = None,
    device: options.DeviceName = "A100",
    max_memory_mb: MaxMemory = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    timer: options.Timer = "wall",
    channels_last: options.ChannelsLast = False,
    host: options.Host = None,
    attention: options.Attention = "fused",
    phase: options.Phase = "inference",
    optimizer: options.Optimizer = "sgd",
    checkpointing: options.Checkpointing = False,
    autograd: options.Autograd = False,
    context_mb: options.ContextMb = None,
    framework: options.Framework = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Pack models onto one GPU, each on a MIG slice of its own, by predicted memory and latency.

    What gets no slice is a row with its reason, and exit code 1. Nothing is changed on any GPU.
    """
    arguments = options.passed_on(locals())
    if not models and models_from is None:
        raise typer.BadParameter("no model: give files or names, or --from FILE")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.choice import pack
        from dippm.estimate.model_list import Candidate, candidates_of

        cases = [Candidate(model) for model in models or ()]
        if models_from is not None:
            cases += candidates_of(list_text(models_from))
        packing = pack(
            cases,
            framework,
            slo_ms=slo_ms,
            slo_at=slo_at,
            max_memory_mb=max_memory_mb,
            **arguments,
        )
    if json:
        rows = [
            model.row() | {"error": error_document(model.error) if model.error else None}
            for model in packing.models
        ]
        print_json("mig-plan", packing.to_dict() | {"models": rows})
    else:
        from dippm.show.report.console import console
        from dippm.show.report.packing import packing_table, remarks

        console().print(packing_table(packing))
        print_remarks(remarks(packing))
    if packing.left_out:
        raise typer.Exit(1)
