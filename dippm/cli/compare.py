"""`dippm compare`."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say


def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Model files or names.")],
    batch: Annotated[str, typer.Option("--batch", "-b", help="Batch sizes: 1,8,32.")] = "1",
    input: options.Input = None,
    device: Annotated[str, typer.Option("--device", "-d", help="GPUs: A100,H100.")] = "A100",
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    sort: Annotated[
        str | None, typer.Option("--sort", help="Column to sort by, for instance latency_ms.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict several models, each for every device and batch."""
    from dippm.comparison import COLUMNS

    batches = _numbers(batch)
    if sort and sort not in COLUMNS:
        raise typer.BadParameter(f"{sort!r} is no column; columns: {', '.join(COLUMNS)}")
    with errors_reported(as_json=json):
        from dippm.api import compare as answer

        table = answer(
            models,
            device=[name.strip() for name in device.split(",")],
            batch=batches,
            input=input,
            checkpoint=checkpoint,
            precision=cast(Any, precision),
            mode=cast(Any, mode),
            trust=trust,
        )
    table = table.sorted_by(sort) if sort else table
    if json:
        print_json(table.rows())
    else:
        say(str(table))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--batch {text!r} is not a list of whole numbers") from None
