"""`dippm what-if`."""

from __future__ import annotations

from typing import Any

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown


@options.conditions()
def what_if(
    model: options.Source,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict the effect of single changes on a model: bandwidth, memory layout, batch size, ..."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.explanation import what_if as answer

        found = answer(model, **asked)
    show("what-if", found, json=json, csv=csv, html=html)
