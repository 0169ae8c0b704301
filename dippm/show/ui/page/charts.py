"""The charts: one card each, redrawn when its data or settings change."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dash import (
    ALL,
    MATCH,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    dcc,
    html,
    no_update,
)

from dippm.base.printable import printable
from dippm.show.ui.exploration import ChartSelection, ChartView
from dippm.show.ui.figure import figure_of, level_text
from dippm.show.ui.library import Library
from dippm.show.ui.page.lists import runs_of
from dippm.show.ui.page.visits import (
    ChartId,
    ChartSettings,
    Filters,
    Name,
    Streams,
    Words,
    Zoom,
    checked,
    in_turn,
)
from dippm.show.ui.view import ChartData, view

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displayModeBar": False,  # its buttons are small, and those of the card have labels
    "scrollZoom": False,
}
STEPS = {
    "in": ("+", "Zoom in"), "out": ("−", "Zoom out"), "left": ("←", "Earlier"),
    "right": ("→", "Later"), "higher": ("y+", "Zoom in on y"), "lower": ("y−", "Zoom out on y"),
    "reset": ("All", "All"), "log": ("log", "log axis"),
}  # fmt: skip
FILES = {"png": "PNG", "jpeg": "JPG", "svg": "SVG", "pdf": "PDF", "csv": "CSV", "json": "JSON"}
MOST_ABSENT = 6
MOST_DRAWN = 1000
"""Largest number of runs in a chart: more would take minutes to read, and exceed the memory."""
Zooms = dict[Words, Zoom]


def exploration_of_page(
    settings: ChartSettings,
    filters: Filters | None = None,
    streams: Streams | None = None,
    zooms: Zooms | None = None,
) -> ChartSelection:
    """Return the settings of the page."""
    listed = (filters or Filters()).model_dump(exclude={"opened", "first"})
    drawn = settings.model_dump(include={"smoothing", "alignment", "axis", "grouping", "hidden"})
    flags = {name: name in settings.show for name in FLAGS}
    charts = [chart_view(stream, settings, zooms) for stream in dict.fromkeys(streams or ())]
    said = {"runs": settings.selected, "charts": charts, **listed, **drawn, **flags}
    return ChartSelection.model_validate(said)


FLAGS = ("rates", "spans", "prediction")


def chart_view(stream: str, settings: ChartSettings, zooms: Zooms | None) -> ChartView:
    """Return the settings of one chart."""
    zoom = (zooms or {}).get(stream, Zoom())
    return ChartView(stream=stream, log=zoom.log, x=settings.seen, y=zoom.y)


def answer_charts(app: Dash, library: Library) -> None:
    """Register the callbacks of charts."""

    @app.callback(Output("charts", "children"), Input("streams", "data"), prevent_initial_call=True)
    @checked
    def _cards(streams: Streams | None) -> Any:
        if not streams:
            return html.P("Select runs, then streams to draw of them.", className="empty")
        return [_card(stream) for stream in dict.fromkeys(streams)]

    one = {"stream": MATCH}
    app.clientside_callback(
        ClientsideFunction("page", "dragged"),
        Input({"type": "graph", "stream": ALL}, "relayoutData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output({"type": "graph", **one}, "figure"),
        Output({"type": "note", **one}, "children"),
        Output({"type": "drawn", **one}, "data"),
        inputs={
            "settings": Input("settings", "data"),
            "zooms": Input("zooms", "data"),
            "scheme": Input("dark", "data"),
            "version": Input("version", "data"),
            "id_": State({"type": "graph", **one}, "id"),
            "before": State({"type": "drawn", **one}, "data"),
        },
    )
    @checked
    @in_turn
    def _draw(
        settings: ChartSettings | None,
        zooms: Zooms | None,
        scheme: Name,
        version: int,
        id_: ChartId,
        before: Name | None,
    ) -> tuple[Any, Any, Any]:
        settings = settings or ChartSettings()
        exploration = exploration_of_page(settings)
        wanted = chart_view(id_.stream, settings, zooms)
        selected = runs_of(library, settings.selected)
        runs = selected[:MOST_DRAWN]
        opened = library.opened(run.uuid for run in runs)
        states = [(library.read_at(run.uuid), run.status) for run in runs]
        about = [exploration.model_dump(), wanted.model_dump(), scheme, states]
        drawn = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        if drawn == before:
            return no_update, no_update, no_update
        found = view(runs, opened, exploration, wanted)
        waiting = len(runs) - len(opened)
        troubles = library.failures(run.uuid for run in runs)
        note = _note(found, waiting, troubles)
        if len(runs) < len(selected):
            left = f"the first {MOST_DRAWN:,} of {len(selected):,} selected runs are drawn"
            note.insert(0, html.P(left, className="wait"))
        return figure_of(found, wanted, scheme), note, drawn


def _card(stream: str) -> html.Article:
    named = printable(stream)
    steps = [
        html.Button(
            sign,
            type="button",
            title=title,
            **{"data-step": step, "aria-label": f"{title}: {named}"},
        )
        for step, (sign, title) in STEPS.items()
    ]
    files = [
        html.Button(
            title, type="button", **{"data-take": kind, "aria-label": f"{title} of {named}"}
        )
        for kind, title in FILES.items()
    ]
    save = html.Details(
        className="pop",
        children=[
            html.Summary("Save", title="Take the chart along"),
            html.Div(files, className="card row"),
        ],
    )
    return html.Article(
        className="chart",
        **{"aria-label": named, "data-stream": stream},
        children=[
            html.Div([html.H2(named), html.Div([*steps, save], className="row")], className="head"),
            html.Div(
                dcc.Graph(id={"type": "graph", "stream": stream}, config=CONFIG),
                className="frame",
            ),
            html.Div(id={"type": "note", "stream": stream}, className="note"),
            dcc.Store(id={"type": "drawn", "stream": stream}),
        ],
    )


def _note(view: ChartData, waiting: int, troubles: dict[str, str]) -> list[Any]:
    """Return the notes below a chart."""
    lines = len(view.chart.lines)
    counted = f"{lines:,} line{'s' * (lines != 1)} of {view.points:,} samples"
    parts: list[Any] = [html.P([counted, *(f" · {remark}" for remark in view.remarks)])]
    if waiting > len(troubles):
        parts.append(html.P(f"reading {waiting - len(troubles):,} more runs …", className="wait"))
    parts += [html.P(printable(level_text(level))) for level in view.chart.levels]
    absent = [*view.absent, *((uuid[:8], reason) for uuid, reason in troubles.items())]
    reasons: dict[str, list[str]] = {}
    for run, reason in absent:
        reasons.setdefault(reason, []).append(run)
    for reason, of in list(reasons.items())[:MOST_ABSENT]:
        who = ", ".join(of[:3]) + (f" and {len(of) - 3:,} more" if len(of) > 3 else "")
        parts.append(html.P(printable(f"absent: {who}: {reason}"), className="absent"))
    return parts
