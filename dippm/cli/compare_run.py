"""`dippm compare-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say
from dippm.cli.runs import Store

EARLIER = 1000


def compare_run(
    uuid: Annotated[
        str, typer.Argument(metavar="RUN", help="UUID of the run, or its first characters.")
    ],
    span: Annotated[
        str | None,
        typer.Option(
            "--span", help="Name of the spans that are steps. Default: forward, or the only name."
        ),
    ] = None,
    accept: Annotated[
        Path | None,
        typer.Option(
            "--accept", metavar="FOLDER", help="Also add the run as a row to a collected data set."
        ),
    ] = None,
    co_located: Annotated[
        bool,
        typer.Option(
            "--co-located",
            help="Instead compare the run, and the runs that shared its devices, with runs of the "
            "same work alone.",
        ),
    ] = False,
    alone: Annotated[
        list[str] | None,
        typer.Option(
            "--alone",
            metavar="RUN",
            help="With --co-located: UUID of a run alone; may be repeated.",
        ),
    ] = None,
    idle_w: Annotated[
        float | None,
        typer.Option("--idle-w", min=0, help="With --co-located: power of the idle GPUs in W."),
    ] = None,
    store: Store = None,
    json: options.Json = False,
) -> None:
    """Compare latency, energy and memory of a run's steps with the prediction stored with it."""
    if co_located:
        _co_located(uuid, alone or [], span=span, idle_w=idle_w, store=store, json=json)
        return
    if alone or idle_w is not None:
        raise typer.BadParameter("--alone and --idle-w require --co-located")
    with errors_reported(as_json=json):
        from dippm.runs.store.attach import attach_all
        from dippm.runs.store.runs import open_store
        from dippm.runs.tracking.accepted_runs import HINT, coverage
        from dippm.runs.tracking.accepted_runs import accept as take
        from dippm.runs.tracking.run_comparison import DOCUMENT
        from dippm.runs.tracking.run_comparison import compare_run as compared

        attach_all(store=store)
        opened = open_store(store)
        run = opened.run(uuid)
        comparison = compared(run, span=span, earlier=opened.runs(limit=EARLIER))
        opened.keep(run, DOCUMENT, comparison.to_dict(), comparison.key_figures())
        taken = False
        if accept is not None and run.prediction is not None:
            taken = take(accept, run, comparison, run.prediction)
        warnings = [found.warning for found in coverage(opened.runs(limit=EARLIER))]
        warnings = [warning for warning in warnings if warning]
    if json:
        document = comparison.to_dict() | {"warnings": warnings}
        print_json("compare-run", document | ({"accepted": taken} if accept else {}))
        return
    say(str(comparison))
    if accept is not None:
        say(f" {'a row of' if taken else 'was a row already of'} {accept}")
    for warning in warnings:
        say(f" ! {warning}")
    if warnings:
        say(f"   {HINT}")


def _co_located(
    uuid: str,
    alone: list[str],
    *,
    span: str | None,
    idle_w: float | None,
    store: str | None,
    json: bool,
) -> None:
    """Show the slowdown of co-located runs."""
    with errors_reported(as_json=json):
        from dippm.runs.colocation.predicted_slowdowns import predict_slowdowns
        from dippm.runs.colocation.slowdown import DOCUMENT, slowdown
        from dippm.runs.store.attach import attach_all
        from dippm.runs.store.runs import open_store

        attach_all(store=store)
        opened = open_store(store)
        run = opened.run(uuid)
        found = slowdown(
            run,
            opened.runs(limit=EARLIER),
            alone=[opened.run(each) for each in alone],
            span=span,
            idle_w=idle_w,
        )
        found = found.with_predictions(
            predict_slowdowns([opened.run(one.uuid) for one in found.runs])
        )
        opened.keep(run, DOCUMENT, found.to_dict(), found.key_figures())
    if json:
        print_json("compare-collocated", found.to_dict())
    else:
        say(str(found))
