"""Callbacks for the lists of the page (runs, streams, lines) and for the comparison of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, html, no_update

from dippm.base.printable import printable
from dippm.errors import RunError
from dippm.show.ui.exploration import ChartSelection
from dippm.show.ui.figure import SCHEMES
from dippm.show.ui.library import Library
from dippm.show.ui.page.visits import ChartSettings, Filters, Name, OpenView, RunTicks, checked
from dippm.show.ui.selection import ListedRun, count_names, filter_runs, runs_within
from dippm.show.ui.streams import TOLD, listed_streams
from dippm.show.ui.table import (
    METRIC,
    OWN,
    PARAM,
    SCREENFUL,
    TAG,
    cell_text,
    column_label,
    default_columns,
    known_columns,
    table,
    value_of,
)
from dippm.show.ui.view import keys_of

MOST_NAMED = 100
"""Maximum number of runs whose streams are listed, and of lines in the legend."""
MOST_GROUPINGS = 100
"""Maximum number of columns offered for grouping."""
USUAL = ("tree.rss_mb", "tree.cpu_s")
"""Sampled series that are drawn by default, after the reported values."""
MOST_USUAL_TOLD = 2
"""Maximum number of reported values that are drawn by default."""


def answer_lists(app: Dash, library: Library) -> None:
    """Register the callbacks of the table and the lists."""
    app.clientside_callback(ClientsideFunction("state", "start"), Input("clock", "id"))
    for store in ("news", "listed", "offered", "lines", "chosen", "loaded", "answered"):
        app.clientside_callback(
            ClientsideFunction("state", f"draw_{store}"),
            Input(store, "data"),
            prevent_initial_call=True,
        )
    _answer_news(app, library)
    _answer_table(app, library)
    _answer_streams(app, library)
    _answer_lines(app, library)


def _answer_news(app: Dash, library: Library) -> None:
    """Notify the page of changed runs, and of errors on reading them."""

    @app.callback(
        Output("version", "data"),
        Output("news", "data"),
        Input("clock", "n_intervals"),
        State("version", "data"),
    )
    @checked
    def _look(_: int | None, version: int) -> tuple[Any, Any]:
        if library.version == version:
            return no_update, no_update
        news = {"trouble": printable(library.trouble, keep="\n"), "place": printable(library.place)}
        return library.version, news


def _answer_table(app: Dash, library: Library) -> None:
    """Fill the table of runs, and handle its selection."""
    columns = _Columns()

    @app.callback(
        Output("listed", "data"),
        Input("filters", "data"),
        Input("version", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _list(filters: Filters | None, _: int) -> Any:
        return _table_content(library, filters or Filters(), columns)

    @app.callback(
        Output("chosen", "data"),
        Input("wanted", "data"),
        State("filters", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _select(wanted: RunTicks | None, filters: Filters | None) -> Any:
        _, _, found, _ = _filter_steps(library.runs(), filters or Filters())
        if not wanted:
            return no_update
        return [run.uuid for run in found][: None if wanted.all else wanted.newest]


def _answer_streams(app: Dash, library: Library) -> None:
    """List the streams of the selected runs."""

    @app.callback(
        Output("offered", "data"),
        Input("settings", "data"),
        Input("version", "data"),
        State("offered", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _offer(settings: ChartSettings | None, _: int, before: Any) -> Any:
        selected = settings.selected if settings else []
        found: dict[str, int] = {}
        for run in runs_of(library, selected):
            for key in listed_streams(run.metrics):
                found[key] = found.get(key, 0) + 1
        for opened in library.opened(selected[:MOST_NAMED]).values():
            for key in opened.streams:
                found[key] = found.get(key, 0) + 1
        now = {"streams": sorted(found), "usual": _default_streams(found)}
        return no_update if now == before else now


def _answer_lines(app: Dash, library: Library) -> None:
    """Return the names of the lines, and their colours."""

    @app.callback(
        Output("lines", "data"),
        Input("settings", "data"),
        Input("dark", "data"),
        Input("version", "data"),
        State("lines", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _lines(settings: ChartSettings | None, scheme: Name, _: int, before: Any) -> Any:
        settings = settings or ChartSettings()
        runs = runs_of(library, settings.selected)
        named = keys_of(runs, ChartSelection(grouping=settings.grouping))
        rows = [[key, _text(label)] for key, label in named.items()][:MOST_NAMED]
        colours = SCHEMES.get(scheme, SCHEMES["light"]).lines
        now = {"rows": rows, "keys": list(named), "colours": list(colours)}
        return no_update if now == before else now


class _Columns:
    """Cache of the available columns, which every sort needs and only a new run changes."""

    def __init__(self) -> None:
        self._of: Sequence[ListedRun] = ()
        self._found: tuple[list[str], list[str]] = ([], [])

    def of(self, runs: Sequence[ListedRun]) -> tuple[list[str], list[str]]:
        """Return the default columns, and all columns."""
        if runs is not self._of:
            self._found = default_columns(runs), known_columns(runs)
            self._of = runs
        return self._found


def _table_content(library: Library, filters: Filters, columns: _Columns) -> dict[str, Any]:
    """Return the content of the table and of its filters."""
    every = library.runs()
    found, of_them, listed, trouble = _filter_steps(every, filters)
    usual, known = columns.of(every)
    chosen = filters.columns or usual
    drawn = table(
        listed,
        chosen,
        sort=filters.sort,
        by=filters.by,
        opened=frozenset(filters.opened),
        first=filters.first,
    )
    kinds = zip(drawn.columns, drawn.numeric, strict=True)
    by = ["experiment", "workload", "status", *(key for key in known if ": " in key)]
    return {
        "columns": [[key, _text(column_label(key)), is_number] for key, is_number in kinds],
        "rows": [
            {
                "label": row.label,
                "cells": row.cells,
                "uuids": row.uuids,
                "status": row.status,
                "group": row.group,
                "open": row.open,
            }
            for row in drawn.rows
        ],
        "first": drawn.first,
        "count": drawn.count,
        "most": SCREENFUL,
        "note": f"{len(listed):,} of {len(every):,}",
        "trouble": trouble,
        "known": known,
        "by": [["", "nothing"], *([key, _text(column_label(key))] for key in by[:MOST_GROUPINGS])],
        "experiments": [
            [name, f"{_text(name)} ({count:,})"]
            for name, count in count_names(run.experiment for run in found)
        ],
        "workloads": [
            [json.dumps(pair), f"{_text(pair[1])} ({count:,})"]
            for pair, count in count_names(run.workload for run in of_them)
        ],
        "empty": None if listed else _empty(library, is_filtered=bool(every)),
    }


def _empty(library: Library, *, is_filtered: bool) -> list[str]:
    """Return the lines of text that replace an empty table; those with "$" are commands."""
    if is_filtered:
        return ["No run passes these filters."]
    if library.trouble:
        return ["The store cannot be read: see above."]
    if not library.has_listed:
        return ["Reading the store …"]
    store = f" --store {library.asked}" if library.asked else ""
    return [
        f"There is no run in {printable(library.place)} yet. Record one, from a terminal:",
        f"$ dippm run{printable(store)} -- python train.py",
        "It stands here while it goes on. A program of your own can say more:",
        "$ with dippm.track() as run:\n    run.log_metric('loss', loss, step=step)",
    ]


def _default_streams(found: dict[str, int]) -> list[str]:
    reported = sorted(
        (key for key in found if key.startswith(TOLD)), key=lambda key: ("loss" not in key, key)
    )
    return [*reported[:MOST_USUAL_TOLD], *(key for key in USUAL if key in found)]


def _filter_steps(
    every: Sequence[ListedRun], filters: Filters
) -> tuple[list[ListedRun], list[ListedRun], list[ListedRun], str]:
    """Return the runs after each filter, and the error of a condition, "" without one.

    The filters are words, status and condition; then experiments; then workloads.
    """
    try:
        found = filter_runs(every, filters.search, filters.status, filters.condition)
    except RunError as error:
        return [], [], [], str(error)
    experiments = set(filters.experiments)
    pairs = [o for o in filters.workloads if not experiments or o[0] in experiments]
    of_them = runs_within(found, experiments)
    return found, of_them, runs_within(of_them, (), pairs), ""


def runs_of(library: Library, selected: Iterable[str]) -> list[ListedRun]:
    """Return the selected runs that exist, in the order of selection."""
    known = {run.uuid: run for run in library.runs()}
    return [known[uuid] for uuid in selected if uuid in known]


def _text(text: str) -> str:
    return printable(text) or "–"


# Comparison of runs.


MOST_RUNS = 20
"""Maximum number of runs that are compared."""
MOST_ROWS = 300
"""Maximum number of rows of a section."""
SECTIONS = {PARAM: "Parameters", TAG: "Tags", METRIC: "Summaries and what was told"}


def answer_comparison(app: Dash, library: Library) -> None:
    """Register the callback of the comparison of runs."""

    @app.callback(
        Output("compare", "children"),
        Output("compared", "data"),
        Input("view", "data"),
        Input("settings", "data"),
        Input("version", "data"),
        State("compared", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _compare(
        viewed: OpenView | None, settings: ChartSettings | None, _: int, before: Any
    ) -> tuple[Any, Any]:
        if viewed is None or viewed.name != "compare":
            return no_update, no_update
        runs = runs_of(library, settings.selected if settings else ())
        state = [
            [run.uuid, run.status, round(run.seconds), len(run.metrics)] for run in runs[:MOST_RUNS]
        ]
        if state == before:
            return no_update, no_update
        return _page(runs), state


def _page(runs: Sequence[ListedRun]) -> Any:
    if len(runs) < 2:
        text = "Select two runs or more in the table, to hold them beside each other."
        return html.Div(html.P(text), className="panel")
    seen = runs[:MOST_RUNS]
    known = known_columns(seen)
    own = _section("Run", [key for key in known if key in OWN], seen, is_open=True)
    parts = [own]
    for begin, title in SECTIONS.items():
        keys = [key for key in known if key.startswith(begin)]
        differ = [key for key in keys if _differs(seen, key)]
        shared = [key for key in keys if key not in differ]
        parts.append(_section(f"{title} that differ", differ, seen, is_open=True))
        parts.append(_section(f"{title} that are the same", shared, seen, is_open=False))
    note = (
        [] if len(runs) == len(seen) else [html.P(f"the first {MOST_RUNS} of {len(runs):,} runs")]
    )
    return [*note, *(part for part in parts if part is not None)]


def _differs(runs: Sequence[ListedRun], key: str) -> bool:
    return len({value_of(run, key) for run in runs}) > 1


def _section(title: str, keys: list[str], runs: Sequence[ListedRun], *, is_open: bool) -> Any:
    if not keys:
        return None
    head: list[Any] = [html.Td("")]
    for run in runs:
        link = html.A(
            printable(run.name) or run.uuid[:8],
            href=f"#view=run&run={run.uuid}",
            **{"data-run": run.uuid},
        )
        head.append(html.Th(link, scope="col"))
    rows = [_row(key, runs) for key in keys[:MOST_ROWS]]
    left = len(keys) - len(rows)
    return html.Details(
        open=is_open,
        className="panel",
        children=[
            html.Summary(f"{title} ({len(keys):,})"),
            html.Div(
                html.Table([html.Thead(html.Tr(head)), html.Tbody(rows)]),
                className="scroll",
                tabIndex="0",
                role="region",
                **{"aria-label": title},
            ),
            *([html.P(f"{left:,} more are left out", className="note")] if left else []),
        ],
    )


def _row(key: str, runs: Sequence[ListedRun]) -> html.Tr:
    cells = [cell_text(value_of(run, key), key) for run in runs]
    numbers = [value for run in runs if isinstance(value := value_of(run, key), float)]
    looks = ("number " if numbers else "") + ("differs" if len(set(cells)) > 1 else "")
    return html.Tr(
        [
            html.Th(printable(column_label(key)), scope="row"),
            *(html.Td(cell or "–", className=looks) for cell in cells),
        ]
    )
