"""`dippm sweep`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.base.written import whole_number
from dippm.cli import options
from dippm.cli.output import check_fit, errors_reported, progress_shown, ready_to_plot, show


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

            size = _one(batch or "1")
            found = sweep_power(model, limits_w=power_limit, batch=size, **asked)
    name = "sweep" if power_limit is None else "power-sweep"
    show(name, found, json=json, csv=csv, html=html)
    if require_fit:
        check_fit(found.predictions if power_limit is None else [found.prediction])


def _one(batch: str) -> int:
    try:
        return whole_number(batch)
    except ValueError:
        raise typer.BadParameter("--power-limit requires a single batch size") from None
