"""The list of runs, what is selected in it, and the lines that are shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from dippm.errors import RunError
from dippm.figures import show
from dippm.printable import printable
from dippm.ui.exploration import Exploration
from dippm.ui.figure import SCHEMES
from dippm.ui.library import Library
from dippm.ui.selection import Listed, changed, counted, filtered, within
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
    def _look(_: int, version: int) -> tuple[Any, Any, Any]:
        if library.version == version:
            return no_update, no_update, no_update
        return library.version, printable(library.trouble, keep="\n"), printable(library.place)

    @app.callback(
        Output("experiments", "options"),
        Output("workloads", "options"),
        Output("runs", "options"),
        Output("runs", "value"),
        Output("selected", "data"),
        Output("runs-note", "children"),
        Output("condition-trouble", "children"),
        Input("version", "data"),
        Input("search", "value"),
        Input("status", "value"),
        Input("condition", "value"),
        Input("experiments", "value"),
        Input("workloads", "value"),
        Input("runs", "value"),
        Input("select-all", "n_clicks"),
        Input("select-none", "n_clicks"),
        Input("loaded", "data"),
        State("runs", "options"),
        State("selected", "data"),
    )
    def _list(
        _: int,
        search: str | None,
        status: str | None,
        condition: str | None,
        experiments: list[str],
        workloads: list[str],
        ticked: list[str],
        __: int,
        ___: int,
        loaded: dict[str, Any] | None,
        offered: list[dict[str, Any]],
        selected: list[str],
    ) -> tuple[Any, ...]:
        trouble, every = "", library.runs()
        try:
            found = filtered(every, search or "", status or "", condition or "")
        except RunError as error:
            found, trouble = [], str(error)
        pairs = [(w[0], w[1]) for w in map(json.loads, workloads)]
        of_them = within(found, experiments)
        listed = within(of_them, (), [pair for pair in pairs if _stands(pair, experiments)])
        cause = ctx.triggered_id
        if cause == "runs":
            selected = changed(selected, [option["value"] for option in offered], ticked)
        elif cause == "select-all":
            selected = changed(selected, (), [run.uuid for run in listed])
        elif cause == "select-none":
            selected = []
        elif cause == "loaded" and loaded:
            selected = list(loaded["runs"])
        rows = listed[:MOST_ROWS]
        on = set(selected)
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
                for pair, count in counted(run.workload for run in of_them)  # type: ignore[arg-type]
            ],
            [{"label": _row(run), "value": run.uuid} for run in rows],
            [run.uuid for run in rows if run.uuid in on],
            selected if cause in CHANGERS else no_update,
            note,
            trouble,
        )

    @app.callback(
        Output("streams", "options"),
        Output("streams-note", "hidden"),
        Input("selected", "data"),
        Input("version", "data"),
        Input("streams", "value"),
    )
    def _streams(selected: list[str], _: int, chosen: list[str] | None) -> tuple[Any, bool]:
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
        Output("legend", "value"),
        Output("hidden", "data"),
        Output("lines-summary", "children"),
        Output("lines", "style"),
        Input("legend", "value"),
        Input("selected", "data"),
        Input("grouping", "value"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        Input("loaded", "data"),
        Input("dark", "data"),
        Input("version", "data"),
        State("legend", "options"),
        State("hidden", "data"),
    )
    def _legend(
        shown: list[str],
        selected: list[str],
        grouping: str,
        _: int,
        __: int,
        loaded: dict[str, Any] | None,
        scheme: str,
        ___: int,
        offered: list[dict[str, Any]],
        hidden: list[str],
    ) -> tuple[Any, ...]:
        named = keys_of(
            runs_of(library, selected), Exploration.model_validate({"grouping": grouping})
        )
        cause = ctx.triggered_id
        if cause == "legend":
            keys = [option["value"] for option in offered]
            hidden = [key for key in hidden if key not in set(keys)]
            hidden += [key for key in keys if key not in set(shown)]
        elif cause == "show-all":
            hidden = [key for key in hidden if key not in named]
        elif cause == "hide-all":
            hidden = list(dict.fromkeys([*hidden, *named]))
        elif cause == "loaded" and loaded:
            hidden = list(loaded["hidden"])
        off = set(hidden)
        rows = list(named.items())[:MOST_NAMED]
        summary = f"Lines: {sum(key not in off for key in named):,} of {len(named):,} shown"
        if len(named) > len(rows):
            summary += f" (the first {len(rows)} are listed)"
        return (
            [{"label": _text(label), "value": key} for key, label in rows],
            [key for key, _ in rows if key not in off],
            hidden if cause in HIDERS else no_update,
            summary,
            {f"--line-{place}": drawn for place, drawn in enumerate(SCHEMES[scheme].lines)},
        )


CHANGERS = ("runs", "select-all", "select-none", "loaded")
HIDERS = ("legend", "show-all", "hide-all", "loaded")


def runs_of(library: Library, selected: list[str]) -> list[Listed]:
    """Return those of the selected runs that there are, in the order of selection."""
    known = {run.uuid: run for run in library.runs()}
    return [known[uuid] for uuid in selected if uuid in known]


def _stands(pair: tuple[str, str], experiments: list[str]) -> bool:
    return not experiments or pair[0] in experiments


def _row(run: Listed) -> str:
    """Return what stands beside a run's box: plain text, which no name can turn into a page."""
    started = datetime.fromtimestamp(run.wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    status = "● running" if run.status == "running" else run.status
    facts = f"{run.uuid[:8]} · {status} · {started} · {show(run.seconds)} s"
    return f"{_text(run.name or run.uuid[:8])}\n{facts}"


def _text(text: str) -> str:
    return printable(text) or "–"
