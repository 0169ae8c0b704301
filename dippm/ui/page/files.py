"""What a visitor takes along and brings back: pictures, tables, explorations."""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from pathlib import Path
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, dcc, no_update

from dippm.printable import json_text, printable
from dippm.report.runs.charts import Drawn
from dippm.report.runs.picture import write_picture
from dippm.report.runs.tabular import csv_text, document
from dippm.ui.exploration import ExplorationError, exploration_of
from dippm.ui.library import Library
from dippm.ui.page.charts import SETTINGS, TABLES, chart_view, chart_views, exploration_of_page
from dippm.ui.page.lists import runs_of
from dippm.ui.page.visits import (
    ChartId,
    Clicks,
    Name,
    Names,
    Settings,
    Words,
    Zoom,
    checked,
    in_turn,
    triggered,
)
from dippm.ui.view import view

STATES = {name: State(o.component_id, o.component_property) for name, o in SETTINGS.items()}


def answer_files(app: Dash, library: Library) -> None:
    """Answer what a visitor takes along and brings."""
    one = {"stream": MATCH}

    @app.callback(
        Output({"type": "download", **one}, "data"),
        inputs={
            "clicks": [Input({"type": f"take-{name}", **one}, "n_clicks") for name in TABLES],
            "settings": STATES,
            "zoom": State({"type": "zoom", **one}, "data"),
            "log": State({"type": "log", **one}, "value"),
            "id_": State({"type": "graph", **one}, "id"),
        },
        prevent_initial_call=True,
    )
    @checked
    @in_turn
    def _take(
        clicks: Clicks,
        settings: Settings,
        zoom: Zoom | None,
        log: Names | None,
        id_: ChartId,
    ) -> Any:
        kind = triggered().removeprefix("take-")
        if not any(clicks) or kind not in TABLES:
            return no_update
        wanted = chart_view(id_, zoom, log)
        runs = runs_of(library, settings.selected or ())
        opened = library.opened(run.uuid for run in runs)
        found = view(runs, opened, exploration_of_page(settings), wanted, whole=kind != "pdf")
        absent = tuple((run, wanted.stream, reason) for run, reason in found.absent)
        drawn = Drawn((found.chart,), absent)
        name = f"{file_name(wanted.stream)}.{kind}"
        if kind == "pdf":
            return dcc.send_bytes(_pdf(drawn), name)
        text = csv_text(drawn) if kind == "csv" else json_text(document(drawn)) + "\n"
        return dcc.send_string(text, name)

    @app.callback(
        Output("saved", "data"),
        inputs={
            "clicks": Input("save", "n_clicks"),
            "settings": STATES,
            "zooms": State({"type": "zoom", "stream": ALL}, "data"),
            "logs": State({"type": "log", "stream": ALL}, "value"),
            "ids": State({"type": "zoom", "stream": ALL}, "id"),
            "search": State("search", "value"),
            "status": State("status", "value"),
            "condition": State("condition", "value"),
        },
        prevent_initial_call=True,
    )
    @checked
    def _save(
        clicks: int | None,
        settings: Settings,
        zooms: list[Zoom | None],
        logs: list[Names | None],
        ids: list[ChartId],
        search: Words | None,
        status: Words | None,
        condition: Words | None,
    ) -> Any:
        charts = chart_views(ids, zooms, logs)
        listed = {"search": search or "", "status": status or "", "condition": condition or ""}
        exploration = exploration_of_page(settings, charts, **listed)
        return dcc.send_string(exploration.text(), "exploration.json")

    @app.callback(
        Output("message", "children"),
        Output("loaded", "data"),
        Output("streams", "value"),
        Output("smoothing", "value"),
        Output("alignment", "value"),
        Output("grouping", "value"),
        Output("show", "value"),
        Output("search", "value"),
        Output("status", "value"),
        Output("condition", "value"),
        Input("load", "contents"),
        State("load", "filename"),
        prevent_initial_call=True,
    )
    @checked
    def _load(contents: str | None, name: Name | None) -> tuple[Any, ...]:
        if not contents:
            return (no_update,) * 10
        try:
            exploration = exploration_of(_bytes(contents))
        except ExplorationError as error:
            return (f"{printable(name or '')}: {error}", *(no_update,) * 9)
        known = {run.uuid for run in library.runs()}
        lost = sum(uuid not in known for uuid in exploration.runs)
        message = f"loaded {printable(name or 'an exploration')}: {len(exploration.runs):,} runs"
        if lost:
            message += f", {lost:,} of them not in this store"
        flags = ("rates", "spans", "prediction")
        return (
            message,
            exploration.model_dump(mode="json"),
            [chart.stream for chart in exploration.charts],
            exploration.smoothing,
            exploration.alignment,
            exploration.grouping,
            [flag for flag in flags if getattr(exploration, flag)],
            exploration.search,
            exploration.status,
            exploration.condition,
        )


def file_name(stream: str) -> str:
    """Return a name for files of a stream that every system takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stream).strip("-")[:80] or "chart"


def _bytes(contents: str) -> bytes:
    try:
        return base64.b64decode(contents.partition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ExplorationError("the file did not arrive whole", "Load it again.") from error


def _pdf(drawn: Drawn) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dippm-pdf-") as folder:
        path = Path(folder) / "chart.pdf"
        write_picture(drawn, path)
        return path.read_bytes()
