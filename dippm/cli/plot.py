"""`dippm plot`: charts of several runs, and menus to choose what is drawn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dippm.base.printable import printable
from dippm.cli import options
from dippm.cli.options import split_list
from dippm.cli.output import errors_reported, progress_shown, say
from dippm.cli.runs import Store
from dippm.errors import DippmError

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun
    from dippm.show.report.runs.catalogue import Entry
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
            runs, entries = pick(runs)
        if not entries:
            raise typer.Exit(1)
        drawn = draw(runs, entries)
        write_charts(drawn, back_end, out or (Path(FILES[back_end]) if back_end in FILES else None))
    if open_it:
        typer.launch(str(out or FILES.get(back_end, "")))


def write_charts(drawn: DrawnCharts, back_end: BackEnd, out: Path | None) -> None:
    """Write the file, or show the text."""
    from dippm.show.report.files import write_text

    if back_end is BackEnd.MATPLOTLIB and out is not None:
        from dippm.show.report.runs.picture import write_picture

        write_picture(drawn, out)
    elif back_end is BackEnd.PLOTLY and out is not None:
        from dippm.show.report.runs.picture import html_page

        write_text(out, html_page(drawn, "Runs"))
    elif out is None:
        say(_text(drawn, back_end))
        return
    else:
        write_text(out, _text(drawn, back_end) + "\n")
    sys.stderr.write(f"written: {printable(str(out))}\n")


def _text(drawn: DrawnCharts, back_end: BackEnd) -> str:
    from dippm.base.printable import json_text
    from dippm.show.report.runs.text import csv_text, document, plain_text

    if back_end is BackEnd.JSON:
        return json_text(document(drawn))
    if back_end is BackEnd.CSV:
        return csv_text(drawn).rstrip("\n")
    return plain_text(drawn)


_Item = TypeVar("_Item")


def pick(
    runs: Sequence[StoredRun], types: Sequence[str] = (), descriptions: Sequence[str] = ()
) -> tuple[list[StoredRun], list[Entry]]:
    """Let the user choose runs and entries.

    Args:
        runs: runs to choose from.
        types: types as in `chosen`; if given, their menu is skipped.
        descriptions: descriptions, likewise.

    Raises:
        DippmError: if there is nothing to choose from, or the menu library is missing.
        typer.Exit: with code 130 after Ctrl-C.
    """
    from dippm.show.report.runs.catalogue import chosen
    from dippm.show.report.runs.listing import when

    if not runs:
        raise DippmError("there are no runs yet", "`dippm run -- COMMAND` makes one.")
    wanted = _ask(
        "Runs", {f"{run.uuid[:8]}  {when(run)[:16]}  {run.name}  {run.status}": run for run in runs}
    )
    described = found = chosen(wanted, types, descriptions)
    if not types:
        asked = _ask("Types", {entry.type: entry.type for entry in found})
        described = [entry for entry in found if entry.type in asked]
    if descriptions:
        return wanted, described
    names = {entry.description or "(series)": entry.description for entry in described}
    left = _ask("Descriptions", names) if len(names) > 1 else list(names.values())
    return wanted, [entry for entry in described if entry.description in left]


def _ask(title: str, items: dict[str, _Item]) -> list[_Item]:
    try:
        import questionary
    except ImportError as error:
        hint = "Install it: pip install 'dippm[track]'; or give runs with --uuids."
        raise DippmError("the menus require questionary", hint) from error
    choices = [questionary.Choice(printable(text), value=item) for text, item in items.items()]
    answer: list[Any] | None = questionary.checkbox(
        f"{title}:",
        choices=choices,
        instruction="(space: select, a: all, i: invert, enter: continue)",
        validate=lambda chosen_: bool(chosen_) or "Select at least one with the space bar.",
    ).ask(kbi_msg="")
    if answer is None:
        raise typer.Exit(130)
    return answer
