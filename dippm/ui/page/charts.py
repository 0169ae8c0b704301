"""The charts: one card each, drawn anew when what it shows changes."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

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
from pydantic import Field
from werkzeug.exceptions import BadRequest

from dippm.printable import printable
from dippm.ui.exploration import MAX_CHARTS, ChartView, Exploration, Text
from dippm.ui.figure import SCHEMES, figure_of, level_text, span_colour
from dippm.ui.library import Library
from dippm.ui.page.lists import runs_of
from dippm.ui.page.visits import (
    ChartId,
    Name,
    Names,
    Settings,
    Zoom,
    checked,
    in_turn,
    triggered,
)
from dippm.ui.view import View, view

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displayModeBar": True,
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["toImage", "lasso2d", "select2d"],
}
ZOOMS = {
    "in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later",
    "higher": "Zoom in on y", "lower": "Zoom out on y", "reset": "All",
}  # fmt: skip
SIGNS = {"in": "+", "out": "−", "left": "←", "right": "→", "higher": "y+", "lower": "y−"}
PICTURES = {"png": "PNG", "jpeg": "JPG", "svg": "SVG"}
TABLES = {"pdf": "PDF", "csv": "CSV", "json": "JSON"}
SETTINGS = {
    "smoothing": Input("smoothing", "value"),
    "alignment": Input("alignment", "value"),
    "grouping": Input("grouping", "value"),
    "show": Input("show", "value"),
    "selected": Input("selected", "data"),
    "hidden": Input("hidden", "data"),
}
"""What all charts share, by name; `exploration_of_page` puts it together."""
MOST_ABSENT = 6
Streams = Annotated[list[Text], Field(max_length=MAX_CHARTS)]


def exploration_of_page(
    settings: Settings,
    charts: tuple[ChartView, ...] = (),
    *,
    search: str = "",
    status: str = "",
    condition: str = "",
) -> Exploration:
    """Return what is set on the page."""
    shown = settings.show or ()
    return Exploration(
        runs=tuple(settings.selected or ()),
        hidden=tuple(settings.hidden or ()),
        charts=charts,
        smoothing=settings.smoothing or 0,
        alignment=settings.alignment,
        grouping=settings.grouping,
        rates="rates" in shown,
        spans="spans" in shown,
        prediction="prediction" in shown,
        search=search,
        status=status,
        condition=condition,
    )


def answer_charts(app: Dash, library: Library) -> None:
    """Answer what a visitor does with charts."""

    @app.callback(
        Output("charts", "children"),
        Input("streams", "value"),
        Input("loaded", "data"),
        State({"type": "zoom", "stream": ALL}, "data"),
        State({"type": "zoom", "stream": ALL}, "id"),
        State({"type": "log", "stream": ALL}, "value"),
    )
    @checked
    def _cards(
        chosen: Streams | None,
        loaded: Exploration | None,
        zooms: list[Zoom | None],
        ids: list[ChartId],
        logs: list[Names | None],
    ) -> Any:
        known = {chart.stream: chart for chart in chart_views(ids, zooms, logs)}
        if loaded and triggered() == "loaded":
            known |= {chart.stream: chart for chart in loaded.charts}
        if not chosen:
            return html.P("Select runs, then streams to draw of them.", className="empty")
        return [_card(known.get(stream, ChartView(stream=stream))) for stream in chosen]

    one = {"stream": MATCH}
    app.clientside_callback(
        ClientsideFunction("page", "zoom"),
        Output({"type": "zoom", **one}, "data"),
        Input({"type": "graph", **one}, "relayoutData"),
        *(Input({"type": f"zoom-{name}", **one}, "n_clicks") for name in ZOOMS),
        State({"type": "zoom", **one}, "data"),
        State({"type": "graph", **one}, "id"),
        prevent_initial_call=True,
    )
    for name in PICTURES:
        app.clientside_callback(
            ClientsideFunction("page", "picture"),
            Output({"type": f"took-{name}", **one}, "data"),
            Input({"type": f"take-{name}", **one}, "n_clicks"),
            State({"type": "graph", **one}, "id"),
            prevent_initial_call=True,
        )
    app.clientside_callback(
        ClientsideFunction("page", "scheme"), Output("dark", "data"), Input("scheme", "value")
    )

    @app.callback(
        Output({"type": "graph", **one}, "figure"),
        Output({"type": "note", **one}, "children"),
        Output({"type": "drawn", **one}, "data"),
        inputs={
            "settings": SETTINGS,
            "zoom": Input({"type": "zoom", **one}, "data"),
            "log": Input({"type": "log", **one}, "value"),
            "scheme": Input("dark", "data"),
            "version": Input("version", "data"),
            "id_": State({"type": "graph", **one}, "id"),
            "before": State({"type": "drawn", **one}, "data"),
        },
    )
    @checked
    @in_turn
    def _draw(
        settings: Settings,
        zoom: Zoom | None,
        log: Names | None,
        scheme: Name,
        version: int,
        id_: ChartId,
        before: Name | None,
    ) -> tuple[Any, Any, Any]:
        exploration = exploration_of_page(settings)
        wanted = chart_view(id_, zoom, log)
        runs = runs_of(library, settings.selected or ())
        opened = library.opened(run.uuid for run in runs)
        states = [library.read_at(run.uuid) for run in runs]
        about = [exploration.model_dump(), wanted.model_dump(), scheme, states]
        drawn = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        if drawn == before:
            return no_update, no_update, no_update
        found = view(runs, opened, exploration, wanted)
        waiting = len(runs) - len(opened)
        troubles = library.failures(run.uuid for run in runs)
        note = _note(found, waiting, troubles, scheme)
        return figure_of(found, wanted, scheme), note, drawn


def chart_view(id_: ChartId, zoom: Zoom | None, log: Names | None) -> ChartView:
    """Return what is set on one chart."""
    zoom = zoom or Zoom()
    return ChartView(stream=id_.stream, log=bool(log), x=zoom.x, y=zoom.y)


def chart_views(
    ids: list[ChartId], zooms: list[Zoom | None], logs: list[Names | None]
) -> tuple[ChartView, ...]:
    """Return what is set on each chart.

    Raises:
        BadRequest: if the lists do not belong together.
    """
    if not len(ids) == len(zooms) == len(logs):
        raise BadRequest("its lists of charts differ in length")
    return tuple(map(chart_view, ids, zooms, logs))


def _card(known: ChartView) -> html.Article:
    one, named = {"stream": known.stream}, printable(known.stream)
    buttons = [
        html.Button(
            SIGNS.get(name, title),
            id={"type": f"zoom-{name}", **one},
            title=title,
            **{"aria-label": f"{title}: {named}"},
        )
        for name, title in ZOOMS.items()
    ]
    files = [
        html.Button(
            title, id={"type": f"take-{name}", **one}, **{"aria-label": f"{title} of {named}"}
        )
        for name, title in {**PICTURES, **TABLES}.items()
    ]
    return html.Article(
        className="chart",
        **{"aria-label": named},
        children=[
            html.H2(named),
            html.Div(
                className="row",
                children=[
                    dcc.Checklist(
                        id={"type": "log", **one},
                        options={"log": "log axis"},
                        value=["log"] if known.log else [],
                    ),
                    *buttons,
                ],
            ),
            html.Div(dcc.Graph(id={"type": "graph", **one}, config=CONFIG), className="frame"),
            html.Div(id={"type": "note", **one}, className="note"),
            html.Div(className="row files", children=[html.Span("Take along:"), *files]),
            dcc.Store(id={"type": "zoom", **one}, data={"x": known.x, "y": known.y}),
            dcc.Store(id={"type": "drawn", **one}),
            *(dcc.Store(id={"type": f"took-{name}", **one}) for name in PICTURES),
            dcc.Download(id={"type": "download", **one}),
        ],
    )


def _note(view: View, waiting: int, troubles: dict[str, str], scheme: str) -> list[Any]:
    """Return what stands below a chart."""
    lines = len(view.chart.lines)
    counted = f"{lines:,} line{'s' * (lines != 1)} of {view.points:,} samples"
    parts: list[Any] = [html.P([counted, *(f" · {remark}" for remark in view.remarks)])]
    if waiting > len(troubles):
        parts.append(html.P(f"reading {waiting - len(troubles):,} more runs …", className="wait"))
    parts += [html.P(printable(level_text(level))) for level in view.chart.levels]
    names = list(dict.fromkeys(stretch.name for stretch in view.chart.stretches))
    if names:
        looks = SCHEMES.get(scheme, SCHEMES["light"])
        swatches = [
            html.Span(
                [html.Span(className="swatch", style={"background": span_colour(n, looks)}), text]
            )
            for n, text in enumerate(printable(name) for name in names[:20])
        ]
        parts.append(html.P(["spans: ", *swatches], className="spans"))
    absent = [*view.absent, *((uuid[:8], reason) for uuid, reason in troubles.items())]
    reasons: dict[str, list[str]] = {}
    for run, reason in absent:
        reasons.setdefault(reason, []).append(run)
    for reason, of in list(reasons.items())[:MOST_ABSENT]:
        who = ", ".join(of[:3]) + (f" and {len(of) - 3:,} more" if len(of) > 3 else "")
        parts.append(html.P(printable(f"absent: {who}: {reason}"), className="absent"))
    return parts
