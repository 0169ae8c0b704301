"""`dippm explain`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.pages import ready_to_plot
from dippm.cli.progress import progress_shown


@options.conditions()
def explain(
    model: options.Source,
    *,
    operators: Annotated[
        int, typer.Option("--operators", min=0, help="Also list the N costliest operators.")
    ] = 0,
    depth: options.Depth = 3,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Attribute time, energy and memory to the parts of a model.

    With --html the page has a flame chart and a roofline plot.
    """
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import explain as answer

        found = answer(model, **asked)
    show("explain", found, json=json, csv=csv, html=html, depth=depth, operators=operators)
