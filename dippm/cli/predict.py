"""`dippm predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say


def predict(
    model: options.Source,
    batch: options.Batch = 1,
    input: options.Input = None,
    device: options.DeviceName = "A100",
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    timer: options.Timer = "wall",
    mig: Annotated[
        str | None, typer.Option("--mig", help="Predict for this slice, for instance 3g.20gb.")
    ] = None,
    framework: options.Framework = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    operators: Annotated[
        int, typer.Option("--operators", min=0, help="Also list the N costliest operators.")
    ] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a report that opens offline.")
    ] = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
) -> None:
    """Predict memory, energy, latency and MIG slice of a model."""
    with errors_reported(as_json=json):
        from dippm.api import predict as answer

        prediction = answer(
            model,
            framework,
            input=input,
            batch=batch,
            device=device,
            checkpoint=checkpoint,
            precision=cast(Any, precision),
            mode=cast(Any, mode),
            timer=cast(Any, timer),
            mig=mig,
            trust=trust,
            timeout_s=timeout_s,
            memory_limit_mb=memory_limit_mb,
        )
        if html:
            from dippm.report.html import write_report

            write_report(html, prediction)
    if json:
        print_json(prediction.to_dict())
        return
    say(str(prediction))
    if operators:
        from dippm.report.console import console, operator_table

        console().print(operator_table(prediction, operators))
