"""`dippm runs`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say
from dippm.cli.progress import progress_shown

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Run store: file, database or server URI. Default: $MLFLOW_TRACKING_URI, else a file "
        "of the user.",
    ),
]


def runs(
    uuid: Annotated[
        str | None,
        typer.Argument(
            metavar="[UUID]", help="Show the run with this UUID, or its first characters."
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            "-s",
            help="Only runs with these words in names, params, tags or descriptions.",
        ),
    ] = "",
    experiment: Annotated[
        str | None, typer.Option("--experiment", "-e", help="Only runs of this experiment.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            help="Only runs with this status: finished, failed, timeout, interrupted or lost.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            help="Only runs that meet a condition on a metric, such as 'tree.rss_mb.max > 100'; "
            "may be repeated.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of runs.")
    ] = 50,
    attach: Annotated[
        bool,
        typer.Option(
            "--attach",
            help="Report which runs of the spool were added to the store, and which still wait.",
        ),
    ] = False,
    store: Store = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List runs, newest first, or show one. Runs in the spool are added to the store first."""
    from dippm.show.report.runs.listing import details, runs_table, short_document, whole_document

    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.runs.store.attach import attach_all
        from dippm.runs.store.location import locate_store
        from dippm.runs.store.query import Condition
        from dippm.runs.store.runs import open_store, run_of_folder

        replayed = attach_all(store=store)
        here = locate_store(store)
        attaching = [run_of_folder(f) for f, uri in replayed.attaching.items() if uri == here.uri]
        schema = "runs"
        if attach:
            schema = "runs-attached"
            document: dict[str, Any] = {
                "attached": [run.uuid for run in replayed.attached],
                "waiting": {str(path): reason for path, reason in replayed.waiting.items()},
                "running": [str(path) for path in replayed.running],
            }
            shown = None
        elif uuid is not None:
            schema = "runs-one"
            shown = [open_store(store).run(uuid, attaching)]
            document = whole_document(shown[0])
            parts = details(shown[0])
        elif here.is_new():  # MLflow would take seconds to create its tables
            for condition in where or ():
                Condition.parse(condition)
            shown = []
            document, parts = {"runs": []}, ["no runs"]
        else:
            shown = open_store(store).runs(
                search,
                experiment=experiment,
                status=status,
                where=where or (),
                limit=limit,
                beside=attaching,
            )
            document = {"runs": [short_document(run) for run in shown]}
            parts = [runs_table(shown)] if shown else ["no runs"]
    if json:
        print_json(schema, document)
    elif shown is None:
        _say_replayed(document)
    else:
        from dippm.show.report.console import console

        for part in parts:
            console().print(part)
    if attach and replayed.waiting:
        raise typer.Exit(1)


def _say_replayed(document: dict[str, Any]) -> None:
    from dippm.base.printable import printable

    for word, found in document.items():
        if isinstance(found, dict):
            for path, reason in found.items():
                say(f"{word} {printable(f'{path}: {reason}')}")
        elif isinstance(found, list):
            for item in found:
                say(f"{word} {printable(item)}")
    if not any(document.values()):
        say("nothing waits")
