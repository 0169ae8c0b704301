"""`dippm plot`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.options import split_list
from dippm.cli.output import errors_reported, say
from dippm.cli.progress import progress_shown
from dippm.cli.runs import Store

if TYPE_CHECKING:
    from dippm.show.report.runs.charts import DrawnCharts


class BackEnd(StrEnum):
    """Plotting back-end."""

    PLOTLY = "plotly"
    MATPLOTLIB = "matplotlib"
    TEXT = "text"
    CSV = "csv"
    JSON = "json"


FILES = {BackEnd.PLOTLY: "runs.html", BackEnd.MATPLOTLIB: "runs.png"}


def plot(
    uuids: Annotated[
        str,
        typer.Option(
            "--uuids", "-u", help="UUIDs of runs, separated by commas. Default: choose in a menu."
        ),
    ] = "",
    types: Annotated[
        str,
        typer.Option(
            "--types",
            "-t",
            help="Metrics to draw, separated by commas: tree.rss_mb,loss or memory. Default: all.",
        ),
    ] = "",
    descriptions: Annotated[
        str,
        typer.Option(
            "--descriptions", "-d", help="Draw only these functions or values, separated by commas."
        ),
    ] = "",
    back_end: Annotated[
        BackEnd, typer.Option("--plot-backend", "-p", help="Plotting library, or a text format.")
    ] = BackEnd.TEXT,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write. Default: runs.html (plotly), runs.png (matplotlib), else stdout.",
        ),
    ] = None,
    open_it: Annotated[
        bool, typer.Option("--open", help="Open the written page or image.")
    ] = False,
    store: Store = None,
    quiet: options.Quiet = False,
) -> None:
    """Plot several runs together: series, calls, losses, confusion matrices, hyperparameters."""
    if not uuids and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter(
            "give UUIDs of runs; `dippm runs` lists them", param_hint="--uuids"
        )
    with errors_reported(as_json=False):
        with progress_shown(quiet=quiet):
            from dippm.runs.store.runs import open_store
            from dippm.show.report.runs.catalogue import chosen
            from dippm.show.report.runs.drawing import draw

            opened = open_store(store)
            runs = (
                [opened.run(uuid) for uuid in split_list(uuids)]
                if uuids
                else opened.runs(limit=200)
            )
        if uuids:
            entries = chosen(runs, split_list(types), split_list(descriptions))
        else:
            from dippm.cli.picker import pick

            runs, entries = pick(runs)
        if not entries:
            raise typer.Exit(1)
        drawn = draw(runs, entries)
        write_charts(drawn, back_end, out or (Path(FILES[back_end]) if back_end in FILES else None))
    if open_it:
        typer.launch(str(out or FILES.get(back_end, "")))


def write_charts(drawn: DrawnCharts, back_end: BackEnd, out: Path | None) -> None:
    """Write the file, or show the text."""
    from dippm.base.printable import printable
    from dippm.show.report.files import write_text

    if back_end is BackEnd.MATPLOTLIB and out is not None:
        from dippm.show.report.runs.picture import write_picture

        write_picture(drawn, out)
    elif back_end is BackEnd.PLOTLY and out is not None:
        from dippm.show.report.runs.page import html_page

        write_text(out, html_page(drawn, "Runs"))
    elif out is None:
        say(_text(drawn, back_end))
        return
    else:
        write_text(out, _text(drawn, back_end) + "\n")
    sys.stderr.write(f"written: {printable(str(out))}\n")


def _text(drawn: DrawnCharts, back_end: BackEnd) -> str:
    from dippm.base.printable import json_text
    from dippm.show.report.runs.plain import plain_text
    from dippm.show.report.runs.tabular import csv_text, document

    if back_end is BackEnd.JSON:
        return json_text(document(drawn))
    if back_end is BackEnd.CSV:
        return csv_text(drawn).rstrip("\n")
    return plain_text(drawn)
