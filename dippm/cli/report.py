"""`dippm report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dippm.base.printable import printable
from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, progress_shown, ready_to_plot, say


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a collected data set, written by `dataset.collect`."
        ),
    ],
    html: options.Html = None,
    joined: Annotated[
        Path | None,
        typer.Option("--joined", help="Folder that `dataset.build_collected` wrote from DIR."),
    ] = None,
    checkpoint: options.CheckpointName = None,
    predict: Annotated[
        bool,
        typer.Option("--predict/--no-predict", help="Also predict the models that have a graph."),
    ] = True,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Summarise a collected data set: coverage, noise, failures, predicted and measured values."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.show.report.collected.page import report_of, write_page

        found = report_of(folder, joined=joined, checkpoint=checkpoint, predict=predict)
        if html:
            write_page(html, found)
    if json:
        print_json("report", found.to_dict())
        return
    from dippm.show.report.collected.page import tables
    from dippm.show.report.console import console

    for part in tables(found):
        console().print(part)
    if html:
        say(printable(f"page: {html}"))
