"""The list of runs, what is selected in it, and the lines that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from dippm.errors import RunError
from dippm.figures import show
from dippm.printable import printable
from dippm.ui.exploration import Exploration, Grouping
from dippm.ui.figure import SCHEMES
from dippm.ui.library import Library
from dippm.ui.page.visits import Clicks, Filters, Name, Names, checked, triggered
from dippm.ui.selection import Listed, counted, filtered, joined, within
from dippm.ui.streams import listed_streams
from dippm.ui.view import keys_of

MOST_ROWS = 200
MOST_NAMED = 100


def answer_lists(app: Dash, library: Library) -> None:
    """Answer what a visitor does with the lists."""

    @app.callback(
        Output("version", "data"),
        Output("trouble", "children"),
        Output("place", "children"),
        Input("clock", "n_intervals"),
        State("version", "data"),
    )
    @checked
    def _look(_: int | None, version: int) -> tuple[Any, Any, Any]:
        if library.version == version:
            return no_update, no_update, no_update
        return library.version, printable(library.trouble, keep="\n"), printable(library.place)

    filters = {
        "search": Input("search", "value"),
        "status": Input("status", "value"),
        "condition": Input("condition", "value"),
        "experiments": Input("experiments", "value"),
        "workloads": Input("workloads", "value"),
    }
    for box, store in (("runs", "selected"), ("legend", "hidden")):
        # In the browser, both ways, and neither as an output: Dash would hold a tick back until a
        # list has come that knows nothing of it.
        app.clientside_callback(
            ClientsideFunction("page", f"tick_{box}"),
            Input(box, "value"),
            State(box, "options"),
            State(store, "data"),
            prevent_initial_call=True,
        )
        app.clientside_callback(
            ClientsideFunction("page", f"show_{box}"),
            Input(box, "options"),
            Input(store, "data"),
            State(box, "value"),
        )

    @app.callback(
        Output("experiments", "options"),
        Output("workloads", "options"),
        Output("runs", "options"),
        Output("runs-note", "children"),
        Output("condition-trouble", "children"),
        inputs={
            "filters": filters,
            "selected": Input("selected", "data"),
            "version": Input("version", "data"),
        },
    )
    @checked
    def _list(filters: Filters, selected: Names, version: int) -> tuple[Any, ...]:
        every = library.runs()
        found, of_them, listed, trouble = _filtered(every, filters)
        rows = listed[:MOST_ROWS]
        note = f"{len(listed):,} of {len(every):,}; {len(selected):,} selected"
        if len(listed) > len(rows):
            note += f". The newest {len(rows)} are shown: search for others, or select all"
        return (
            [
                {"label": f"{_text(name)} ({count:,})", "value": name}
                for name, count in counted(run.experiment for run in found)
            ],
            [
                {"label": f"{_text(pair[1])} ({count:,})", "value": json.dumps(pair)}
                for pair, count in counted(run.workload for run in of_them)
            ],
            [{"label": _row(run), "value": run.uuid} for run in rows],
            note,
            trouble,
        )

    @app.callback(
        Output("selected", "data"),
        inputs={
            "clicks": [Input("select-all", "n_clicks"), Input("select-none", "n_clicks")],
            "loaded": Input("loaded", "data"),
            "filters": {n: State(o.component_id, o.component_property) for n, o in filters.items()},
            "selected": State("selected", "data"),
        },
        prevent_initial_call=True,
    )
    @checked
    def _select(
        clicks: Clicks, loaded: Exploration | None, filters: Filters, selected: Names
    ) -> Any:
        by = triggered()
        if by == "loaded":
            return loaded.runs if loaded else no_update
        if by == "select-none":
            return []
        _, _, listed, _ = _filtered(library.runs(), filters)
        return joined(selected, (run.uuid for run in listed))

    @app.callback(
        Output("streams", "options"),
        Output("streams-note", "hidden"),
        Input("selected", "data"),
        Input("version", "data"),
        Input("streams", "value"),
    )
    @checked
    def _streams(selected: Names, _: int, chosen: Names | None) -> tuple[Any, bool]:
        found = dict.fromkeys(chosen or ())
        on = set(selected)
        for run in library.runs():
            if run.uuid in on:
                found.update(dict.fromkeys(listed_streams(run.metrics)))
        for opened in library.opened(selected[:MOST_NAMED]).values():
            found.update(dict.fromkeys(opened.streams))
        options = [{"label": _text(key), "value": key} for key in sorted(found)]
        return options, bool(options)

    @app.callback(
        Output("legend", "options"),
        Output("lines-summary", "children"),
        Output("lines", "style"),
        Input("hidden", "data"),
        Input("selected", "data"),
        Input("grouping", "value"),
        Input("dark", "data"),
        Input("version", "data"),
    )
    @checked
    def _legend(
        hidden: Names, selected: Names, grouping: Grouping, scheme: Name, _: int
    ) -> tuple[Any, ...]:
        named = _named(library, selected, grouping)
        off = set(hidden)
        rows = list(named.items())[:MOST_NAMED]
        summary = f"Lines: {sum(key not in off for key in named):,} of {len(named):,} shown"
        if len(named) > len(rows):
            summary += f" (the first {len(rows)} are listed)"
        colours = SCHEMES.get(scheme, SCHEMES["light"]).lines
        return (
            [{"label": _text(label), "value": key} for key, label in rows],
            summary,
            {f"--line-{place}": drawn for place, drawn in enumerate(colours)},
        )

    @app.callback(
        Output("hidden", "data"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        Input("loaded", "data"),
        State("hidden", "data"),
        State("selected", "data"),
        State("grouping", "value"),
        prevent_initial_call=True,
    )
    @checked
    def _hide(
        _: int | None,
        __: int | None,
        loaded: Exploration | None,
        hidden: Names,
        selected: Names,
        grouping: Grouping,
    ) -> Any:
        by = triggered()
        if by == "loaded":
            return loaded.hidden if loaded else no_update
        named = _named(library, selected, grouping)
        if by == "show-all":
            return [key for key in hidden if key not in named]
        return joined(hidden, named)


def _named(library: Library, selected: Names, grouping: Grouping) -> dict[str, str]:
    return keys_of(runs_of(library, selected), Exploration(grouping=grouping))


def _filtered(
    every: Sequence[Listed], filters: Filters
) -> tuple[list[Listed], list[Listed], list[Listed], str]:
    """Return runs by words, by experiment too, by workload too, and what is wrong with a filter."""
    try:
        found = filtered(every, filters.search or "", filters.status or "", filters.condition or "")
    except RunError as error:
        return [], [], [], str(error)
    experiments = set(filters.experiments or ())
    pairs = [o for o in filters.workloads or () if not experiments or o[0] in experiments]
    of_them = within(found, experiments)
    return found, of_them, within(of_them, (), pairs), ""


def runs_of(library: Library, selected: Iterable[str]) -> list[Listed]:
    """Return those of the selected runs that there are, in the order of selection."""
    known = {run.uuid: run for run in library.runs()}
    return [known[uuid] for uuid in selected if uuid in known]


def _row(run: Listed) -> str:
    """Return what stands beside a run's box: plain text, which no name can turn into a page."""
    started = datetime.fromtimestamp(run.wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    status = "● running" if run.status == "running" else run.status
    facts = f"{run.uuid[:8]} · {status} · {started} · {show(run.seconds)} s"
    return f"{_text(run.name or run.uuid[:8])}\n{facts}"


def _text(text: str) -> str:
    return printable(text) or "–"
