"""`dippm explain`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_verify, print_warnings
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
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Say where time, energy and memory are; --html adds a flame chart and a roofline plot."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import explain as answer

        found = answer(model, **asked)
        if html:
            from dippm.show.report.explanation_page import write_explanation

            write_explanation(html, found)
    if json:
        print_json("explain", found.to_dict())
        return
    from dippm.show.report.console import console
    from dippm.show.report.explanation import explained_table, module_table

    console().print(module_table(found, depth))
    if operators:
        console().print(explained_table(found, operators))
    print_warnings(found.prediction.warnings)
    print_verify(found.prediction)
