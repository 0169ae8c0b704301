"""`dippm import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.base.printable import printable
from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say

if TYPE_CHECKING:
    from dippm.umlaut.importing import ImportResult


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
        print_json("import", _document(imported, attached, added, waiting))
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


def _document(imported: ImportResult, attached: int, added: int, waiting: str) -> dict[str, object]:
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
