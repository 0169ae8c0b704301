"""`umlaut-cli`: UMLAUT's command with its flags, for stores of runs and UMLAUT's databases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.base.interrupt import end_at_once

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun

BACK_ENDS = ("matplotlib", "plotly", "text", "csv")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse UMLAUT's arguments; exits with code 2 if they are not valid."""
    parser = argparse.ArgumentParser(
        "umlaut-cli",
        description="Plot the measurements of Benchmark(file); menus ask for omitted options.",
    )
    parser.add_argument("file", help="file passed to Benchmark, or a UMLAUT database")
    parser.add_argument("-u", "--uuids", nargs="+", default=[], help="UUIDs of runs")
    parser.add_argument(
        "-t", "--types", nargs="+", default=[], help="types of metrics, such as time or memory"
    )
    parser.add_argument("-d", "--descriptions", nargs="+", default=[], help="names of metrics")
    parser.add_argument("-p", "--plotting-backend", choices=BACK_ENDS, default="plotly")
    parser.add_argument("-tmp", "--tmp-dir", help="accepted for compatibility, and ignored")
    return parser.parse_args(words)


def show(given: argparse.Namespace) -> None:
    """Draw the requested charts into umlaut.html or umlaut.png, or as text.

    Raises:
        DippmError: if the file has no such runs, types or descriptions.
    """
    from dippm.cli.plot import BackEnd, pick, write_charts
    from dippm.show.report.runs.catalogue import chosen
    from dippm.show.report.runs.drawing import draw

    runs = _runs(given.file, given.uuids)
    if given.uuids:
        entries = chosen(runs, given.types, given.descriptions)
    else:
        runs, entries = pick(runs, given.types, given.descriptions)
    back_end = BackEnd(given.plotting_backend)
    files = {BackEnd.PLOTLY: Path("umlaut.html"), BackEnd.MATPLOTLIB: Path("umlaut.png")}
    out = files.get(back_end)
    write_charts(draw(runs, entries), back_end, out)
    if out is not None and sys.stdout.isatty():
        import typer

        typer.launch(str(out))


def _runs(file: str, uuids: Sequence[str]) -> list[StoredRun]:
    from dippm.errors import RunError
    from dippm.runs.store.attach import attach_all
    from dippm.runs.store.runs import open_store
    from dippm.umlaut.database import is_umlaut
    from dippm.umlaut.importing import attach_again, attach_now, import_database

    path, store = Path(file), file
    if "://" not in file and not path.exists():
        raise RunError(
            f"there is no file {file}", "Give the file that was passed to Benchmark(db_file)."
        )
    if "://" not in file and is_umlaut(path):
        store = str(path.with_suffix(".dippm.db"))  # a Benchmark of this file writes here as well
        imported = import_database(path, store=store)
        _, waiting = attach_now(imported.folders, store)
        waiting = waiting or attach_again(imported.already, store)[1]
        if waiting:
            hint = "Run `dippm runs --attach`, which tries again."
            raise RunError(f"{file} cannot be imported: {waiting}", hint)
    attach_all()
    opened = open_store(store)
    return [opened.run(uuid.replace("-", "")) for uuid in uuids] or opened.runs(limit=200)


def main() -> None:
    """Run the command; exits with code 1 after an error."""
    end_at_once()
    given = read_arguments(sys.argv[1:])
    from dippm.cli.output import errors_reported

    if not given.uuids and not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("umlaut-cli: give runs with -u; the menus require a terminal\n")
        raise SystemExit(2)
    import typer

    try:
        with errors_reported(as_json=False):
            show(given)
    except typer.Exit as left:
        raise SystemExit(left.exit_code) from None


if __name__ == "__main__":
    main()
