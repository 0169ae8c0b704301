"""The charts: one card each, redrawn when its data or settings change; downloads and uploads."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dippm.base.printable import json_text, printable
from dippm.show.report.runs.charts import DrawnCharts
from dippm.show.report.runs.picture import write_picture
from dippm.show.report.runs.text import csv_text, document
from dippm.show.ui.exploration import ChartSelection, ChartView, ExplorationError, exploration_of
from dippm.show.ui.figure import figure_of, level_text
from dippm.show.ui.library import Library
from dippm.show.ui.page.lists import runs_of
from dippm.show.ui.page.visits import (
    ChartDownload,
    ChartId,
    ChartSettings,
    Filters,
    Name,
    Streams,
    UploadedFile,
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
                dcc.Graph(id={"type": "graph", "stream": stream}, config=CONFIG), className="frame"
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


STATES = {name: State(name, "data") for name in ("settings", "filters", "streams", "zooms")}


def answer_files(app: Dash, library: Library) -> None:
    """Register the callbacks of downloads and uploads."""

    @app.callback(
        Output("download", "data"),
        inputs={
            "taken": Input("taken", "data"),
            "settings": STATES["settings"],
            "zooms": STATES["zooms"],
        },
        prevent_initial_call=True,
    )
    @checked
    @in_turn
    def _take(
        taken: ChartDownload | None, settings: ChartSettings | None, zooms: Zooms | None
    ) -> Any:
        if not taken:
            return no_update
        settings = settings or ChartSettings()
        wanted = chart_view(taken.stream, settings, zooms)
        runs = runs_of(library, settings.selected)[:MOST_DRAWN]
        opened = library.opened(run.uuid for run in runs)
        found = view(runs, opened, exploration_of_page(settings), wanted, whole=taken.kind != "pdf")
        absent = tuple((run, wanted.stream, reason) for run, reason in found.absent)
        drawn = DrawnCharts((found.chart,), absent)
        name = f"{file_name(wanted.stream)}.{taken.kind}"
        if taken.kind == "pdf":
            return dcc.send_bytes(_pdf(drawn), name)
        text = csv_text(drawn) if taken.kind == "csv" else json_text(document(drawn)) + "\n"
        return dcc.send_string(text, name)

    @app.callback(
        Output("saved", "data"),
        inputs={"saving": Input("saving", "data"), **STATES},
        prevent_initial_call=True,
    )
    @checked
    def _save(
        saving: float | None,
        settings: ChartSettings | None,
        filters: Filters | None,
        streams: Streams | None,
        zooms: Zooms | None,
    ) -> Any:
        found = exploration_of_page(settings or ChartSettings(), filters, streams, zooms)
        return dcc.send_string(found.text(), "exploration.json")

    @app.callback(Output("loaded", "data"), Input("given", "data"), prevent_initial_call=True)
    @checked
    def _load(given: UploadedFile | None) -> Any:
        if not given:
            return no_update
        try:
            exploration = exploration_of(given.text)
        except ExplorationError as error:
            return {"message": f"{printable(given.name)}: {error}"}
        known = {run.uuid for run in library.runs()}
        lost = sum(uuid not in known for uuid in exploration.runs)
        message = f"loaded {printable(given.name)}: {len(exploration.runs):,} runs"
        if lost:
            message += f", {lost:,} of them not in this store"
        return {"message": message, **_as_set(exploration)}


def _as_set(exploration: ChartSelection) -> dict[str, Any]:
    """Return saved settings in the form of the page's stores."""
    said = exploration.model_dump(mode="json")
    settings = {name: said[name] for name in ChartSettings.model_fields if name in said}
    settings |= {
        "selected": said["runs"],
        "show": [flag for flag in FLAGS if said[flag]],
        "seen": next((chart["x"] for chart in said["charts"]), None),
    }
    return {
        "settings": settings,
        "filters": {name: said[name] for name in Filters.model_fields if name in said},
        "streams": [chart["stream"] for chart in said["charts"]],
        "zooms": {
            chart["stream"]: {"y": chart["y"], "log": chart["log"]} for chart in said["charts"]
        },
    }


def file_name(stream: str) -> str:
    """Return a file name for a stream that is valid on every system."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stream).strip("-")[:80] or "chart"


def _pdf(drawn: DrawnCharts) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dippm-pdf-") as folder:
        path = Path(folder) / "chart.pdf"
        write_picture(drawn, path)
        return path.read_bytes()
