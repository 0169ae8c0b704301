"""`dippm export-trace` and `dippm verify-trace`."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.options import split_list
from dippm.cli.output import errors_reported, print_json, say
from dippm.cli.progress import progress_shown
from dippm.cli.runs import Store


def export_trace(
    uuid: Annotated[
        str, typer.Argument(metavar="RUN", help="UUID of the run, or its first characters.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("trace.json"),
    listeners: Annotated[
        str,
        typer.Option("--listeners", "-l", help="Name counters like these radT listeners: smi,top."),
    ] = "",
    store: Store = None,
    quiet: options.Quiet = False,
) -> None:
    """Export a run as a trace of spans and samples for ui.perfetto.dev or chrome://tracing."""
    with errors_reported(as_json=False), progress_shown(quiet=quiet):
        from dippm.errors import RunError
        from dippm.runs.store.runs import open_store
        from dippm.show.report.runs.trace import trace, verify

        document = trace(open_store(store).run(uuid), split_list(listeners.replace("+", ",")))
        found = verify(document)
        try:
            out.write_text(json_.dumps(document, separators=(",", ":"), allow_nan=False))
        except OSError as error:
            hint = "Give another file: out=trace.json."
            raise RunError(f"{out} cannot be written: {error.strerror}", hint) from error
    say(_line(str(out), found))


def verify_trace(
    file: Annotated[Path, typer.Argument(help="Trace file in JSON.")],
    json: options.Json = False,
) -> None:
    """Check that a trace viewer can draw a trace: complete events and properly nested spans."""
    with errors_reported(as_json=json):
        from dippm.errors import RunError
        from dippm.show.report.runs.trace import verify

        try:
            document = json_.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            hint = "Create one: dippm export-trace RUN."
            raise RunError(f"{file} is not a trace: {error}", hint) from error
        found = verify(document)
    if json:
        print_json("verify-trace", found)
    else:
        say(_line(str(file), found))


def _line(file: str, found: dict[str, int]) -> str:
    from dippm.base.printable import printable

    counts = f"{found['spans']} spans, {found['counters']} counters with {found['values']} values"
    return f"{printable(file)}: {counts}, {found['absences']} absences"
