"""`dippm runs`, `compare-run`, `export-trace`, `verify-trace`, `import`: runs in the run store."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dippm.base.printable import printable
from dippm.cli import options
from dippm.cli.options import split_list
from dippm.cli.output import errors_reported, print_json, progress_shown, say

if TYPE_CHECKING:
    from dippm.umlaut.importing import ImportResult

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
    """Print which runs of the spool were added to the store, still wait, or are under way."""
    for word, found in document.items():
        if isinstance(found, dict):
            for path, reason in found.items():
                say(f"{word} {printable(f'{path}: {reason}')}")
        elif isinstance(found, list):
            for item in found:
                say(f"{word} {printable(item)}")
    if not any(document.values()):
        say("nothing waits")


EARLIER = 1000
"""Maximum number of recent runs that a run is compared with."""


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
        _compare_co_located(uuid, alone or [], span=span, idle_w=idle_w, store=store, json=json)
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


def _compare_co_located(
    uuid: str,
    alone: list[str],
    *,
    span: str | None,
    idle_w: float | None,
    store: str | None,
    json: bool,
) -> None:
    """Print the slowdown of co-located runs compared with runs alone."""
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
    say(_trace_counts(str(out), found))


def verify_trace(
    file: Annotated[Path, typer.Argument(help="Trace file in JSON.")], json: options.Json = False
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
        say(_trace_counts(str(file), found))


def _trace_counts(file: str, found: dict[str, int]) -> str:
    counts = f"{found['spans']} spans, {found['counters']} counters with {found['values']} values"
    return f"{printable(file)}: {counts}, {found['absences']} absences"


def import_runs(
    database: Annotated[Path, typer.Argument(help="Database file that UMLAUT wrote.")],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="Run store to import to: file, database or server URI. Default: "
            "$MLFLOW_TRACKING_URI, else a file of the user.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Import the runs of a UMLAUT database, which is not changed. Imported runs are skipped."""
    with errors_reported(as_json=json):
        from dippm.errors import RunError
        from dippm.umlaut.importing import attach_again, attach_now, import_database

        try:
            imported = import_database(database, store=store or "")
        except OSError as error:
            raise RunError(
                f"the runs cannot be written: {error}", "Set DIPPM_SPOOL to another folder."
            ) from error
        attached, waiting = attach_now(imported.folders, store)
        added, still = attach_again(imported.already, store)
        waiting = waiting or still
    if json:
        print_json("import", _import_document(imported, attached, added, waiting))
        return
    runs = len(imported.folders)
    say(f"{runs} runs with {imported.measurements} measurements imported from {_name(database)}")
    if imported.already:
        new = f", {added} of them are new in this store" if added else ""
        say(f"{len(imported.already)} runs were imported before{new}")
    for note in imported.notes:
        say(f"! {printable(note)}")
    if waiting:
        say(f"! not in the store yet: {printable(waiting)}")


def _import_document(
    imported: ImportResult, attached: int, added: int, waiting: str
) -> dict[str, object]:
    return {
        "runs": [folder.name for folder in imported.folders],
        "imported_before": [folder.name for folder in imported.already],
        "added_to_store": added,
        "measurements": imported.measurements,
        "notes": list(imported.notes),
        "attached": attached,
        "waiting": waiting,
    }


def _name(path: Path) -> str:
    return printable(path.name)
