"""`dippm what-if`."""

from __future__ import annotations

from typing import Any

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_verify, print_warnings
from dippm.cli.progress import progress_shown


@options.conditions()
def what_if(
    model: options.Source,
    *,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Say what one change at a time would make of a model: bandwidth, layout, batch, ..."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.explanation import what_if as answer

        found = answer(model, **asked)
        if html:
            from dippm.show.report.explanation_page import write_what_if

            write_what_if(html, found)
    if json:
        print_json("what-if", found.to_dict())
        return
    from dippm.show.report.console import console
    from dippm.show.report.explanation import what_if_table

    console().print(what_if_table(found))
    print_warnings(found.baseline.warnings)
    print_verify(found.baseline)
