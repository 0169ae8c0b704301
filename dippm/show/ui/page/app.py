"""`application`: the page as a Flask application."""

from __future__ import annotations

from pathlib import Path

from dash import Dash, dcc, html
from flask import Flask

from dippm.show.ui.authentication import PageAuthentication
from dippm.show.ui.connections import LARGEST_REQUEST_BYTES
from dippm.show.ui.library import Library
from dippm.show.ui.page.charts import answer_charts, answer_files
from dippm.show.ui.page.lists import answer_comparison, answer_lists
from dippm.show.ui.page.predict import answer_predict
from dippm.show.ui.page.run import answer_run
from dippm.show.ui.page.visits import answer_errors
from dippm.show.ui.predicting import PredictSessions


def application(
    library: Library, authentication: PageAuthentication, predicting: PredictSessions | None = None
) -> Flask:
    """Return the application, which loads nothing from a network.

    Args:
        library: the runs.
        authentication: check of every request.
        predicting: sessions of the Predict page; None makes new ones.
    """
    server = Flask("dippm")
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST_BYTES
    app = Dash(
        "dippm",
        server=server,
        assets_folder=str(Path(__file__).with_name("assets")),
        assets_ignore=r"predict\..*",  # files of the Predict page, which does not use Dash
        serve_locally=True,
        index_string=INDEX,
        title="DIPPM runs",
        update_title="",
        suppress_callback_exceptions=True,  # charts come and go
        add_log_handler=False,
        enable_mcp=False,
    )
    app.layout = layout
    answer_lists(app, library)
    answer_charts(app, library)
    answer_files(app, library)
    answer_run(app, library)
    answer_comparison(app, library)
    answer_errors(server)
    answer_predict(server, predicting or PredictSessions())
    authentication.protect(server, tuple(app.csp_hashes()))
    return server


# `INDEX`, the page's HTML, and `layout`, its Dash components.
#
# Controls are plain HTML that `assets/state.js` fills and reads, because screen readers cannot use
# those of Dash. Dash keeps the settings in stores, calls the server when one of them changes, and
# draws charts.


LOOK_EVERY_MS = 1000
INDEX = Path(__file__).with_name("index.html").read_text()
SET = ("settings", "filters", "streams", "zooms", "view")
"""Stores of the visitor's settings, which the browser sends with each request."""
ASKED = ("wanted", "given", "saving", "taken", "fetched")
"""Stores of one-time requests."""
TOLD = ("news", "listed", "offered", "lines", "chosen", "loaded", "answered", "shown", "compared")
"""Stores of the server's answers."""


def layout() -> html.Div:
    """Return the page for a new visitor."""
    stores = [dcc.Store(id=name) for name in (*SET, *ASKED, *TOLD)]
    return html.Div(
        id="page",
        children=[
            html.Section(id="charts", **{"aria-label": "charts"}),
            html.Section(id="compare", **{"aria-label": "comparison of runs"}),
            html.Article(id="run", **{"aria-label": "run"}),
            dcc.Interval(id="clock", interval=LOOK_EVERY_MS),
            dcc.Store(id="version", data=-1),
            dcc.Store(id="dark", data="light"),
            *stores,
            dcc.Download(id="saved"),
            dcc.Download(id="download"),
        ],
    )
