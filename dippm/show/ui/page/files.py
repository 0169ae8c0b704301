"""Downloads and uploads of the page: pictures, tables, saved settings."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, no_update

from dippm.base.printable import json_text, printable
from dippm.show.report.runs.charts import DrawnCharts
from dippm.show.report.runs.picture import write_picture
from dippm.show.report.runs.tabular import csv_text, document
from dippm.show.ui.exploration import ChartSelection, ExplorationError, exploration_of
from dippm.show.ui.library import Library
from dippm.show.ui.page.charts import FLAGS, MOST_DRAWN, Zooms, chart_view, exploration_of_page
from dippm.show.ui.page.lists import runs_of
from dippm.show.ui.page.visits import (
    ChartDownload,
    ChartSettings,
    Filters,
    Streams,
    UploadedFile,
    checked,
    in_turn,
)
from dippm.show.ui.view import view

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
