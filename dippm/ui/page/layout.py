"""`layout`: what stands on the page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dippm.printable import printable
from dippm.ui.exploration import MAX_TEXT
from dippm.ui.library import Library

LOOK_EVERY_MS = 1000
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>
"""
STATUSES = ("running", "finished", "failed", "timeout", "interrupted", "lost")
SHOWN = {"rates": "counters as growth per second", "spans": "spans", "prediction": "predictions"}


def layout(library: Library) -> html.Div:
    """Return the page of a visitor who comes now."""
    return html.Div(
        id="page",
        children=[
            html.A("To the charts", href="#charts", className="skip"),
            html.Header(
                [
                    html.H1("DIPPM runs"),
                    html.P(printable(library.place), id="place"),
                    _choice(
                        "scheme", "Colours", {"auto": "auto", "light": "light", "dark": "dark"}
                    ),
                ]
            ),
            html.P(id="trouble", role="alert"),
            html.P(id="message", role="status"),
            html.Main([_list(), _drawn()]),
            dcc.Interval(id="clock", interval=LOOK_EVERY_MS),
            dcc.Store(id="version", data=-1),
            dcc.Store(id="loaded"),
            dcc.Store(id="selected", data=[]),
            dcc.Store(id="hidden", data=[]),
            dcc.Store(id="dark", data="light"),
            dcc.Download(id="saved"),
        ],
    )


def _list() -> html.Section:
    return html.Section(
        id="list",
        **{"aria-label": "runs"},
        children=[
            html.Details(
                open=True,
                children=[
                    html.Summary("Runs"),
                    _field("search", "Search", "names, params, tags"),
                    _field("condition", "Condition", "tree.rss_mb.max > 100, loss < 0.3"),
                    html.P(id="condition-trouble", role="alert"),
                    _choice("status", "Status", {"": "any"} | {name: name for name in STATUSES}),
                    _ticks("experiments", "Experiments"),
                    _ticks("workloads", "Workloads"),
                    _ticks("runs", "Runs", html.P(id="runs-note")),
                    html.Div(
                        className="row",
                        children=[
                            html.Button("Select all", id="select-all"),
                            html.Button("Select none", id="select-none"),
                        ],
                    ),
                ],
            ),
        ],
    )


def _drawn() -> html.Section:
    return html.Section(
        id="drawn",
        **{"aria-label": "charts"},
        children=[
            html.Div(
                id="settings",
                children=[
                    html.Fieldset(
                        className="wide",
                        children=[
                            html.Legend("Streams"),
                            html.P("Select runs to see what can be drawn.", id="streams-note"),
                            dcc.Checklist(
                                id="streams", options=[], value=[], className="ticks across"
                            ),
                        ],
                    ),
                    html.Div(
                        [
                            html.Label("Smoothing (%)", htmlFor="smoothing"),
                            dcc.Slider(
                                id="smoothing",
                                min=0,
                                max=99,
                                step=1,
                                value=0,
                                marks={0: "0", 25: "25", 50: "50", 75: "75", 99: "99"},
                                updatemode="mouseup",
                            ),
                        ]
                    ),
                    _choice(
                        "alignment",
                        "Align at",
                        {
                            "run": "run's start",
                            "workload": "workload's start",
                            "clock": "time of day",
                        },
                    ),
                    _choice(
                        "grouping", "Workloads", {"single": "every run", "merged": "mean and range"}
                    ),
                    html.Fieldset(
                        [
                            html.Legend("Show"),
                            dcc.Checklist(id="show", options=SHOWN, value=["rates", "prediction"]),
                        ]
                    ),
                    html.Div(
                        className="row wide",
                        children=[
                            html.Button("Save exploration", id="save"),
                            dcc.Upload(
                                id="load",
                                accept=".json,application/json",
                                max_size=4 * 2**20,
                                children=html.Button("Load exploration"),
                            ),
                        ],
                    ),
                ],
            ),
            html.Details(
                id="lines",
                open=True,
                children=[
                    html.Summary("Lines", id="lines-summary"),
                    html.Div(
                        className="row",
                        children=[
                            html.Button("Show all", id="show-all"),
                            html.Button("Hide all", id="hide-all"),
                        ],
                    ),
                    dcc.Checklist(id="legend", options=[], value=[], className="ticks across"),
                ],
            ),
            html.Div(id="charts"),
        ],
    )


def _field(id_: str, label: str, placeholder: str) -> html.Div:
    return html.Div(
        [
            html.Label(label, htmlFor=id_),
            dcc.Input(
                id=id_,
                type="text",
                value="",
                debounce=0.4,
                placeholder=placeholder,
                maxLength=MAX_TEXT,
            ),
        ]
    )


def _choice(id_: str, label: str, options: dict[str, str]) -> html.Fieldset:
    return html.Fieldset(
        [
            html.Legend(label),
            dcc.RadioItems(id=id_, options=options, value=next(iter(options)), inline=True),
        ]
    )


def _ticks(id_: str, label: str, *more: Any) -> html.Fieldset:
    return html.Fieldset(
        [
            html.Legend(label),
            *more,
            dcc.Checklist(id=id_, options=[], value=[], className="ticks"),
        ]
    )
