"""`application`: the page as a program that answers HTTP."""

from __future__ import annotations

from pathlib import Path

from dash import Dash, dcc, html
from flask import Flask

from dippm.show.ui.connections import LARGEST_REQUEST_BYTES
from dippm.show.ui.gate import Gate
from dippm.show.ui.library import Library
from dippm.show.ui.page.charts import answer_charts
from dippm.show.ui.page.files import answer_files
from dippm.show.ui.page.lists import answer_lists
from dippm.show.ui.page.predict import answer_predict
from dippm.show.ui.page.run import answer_run
from dippm.show.ui.page.together import answer_comparison
from dippm.show.ui.page.visits import answer_errors
from dippm.show.ui.predicting import Predicting


def application(library: Library, gate: Gate, predicting: Predicting | None = None) -> Flask:
    """Return the application; nothing of it comes from a network.

    Args:
        library: what it shows.
        gate: asks who comes.
        predicting: answers the Predict door; None makes one.
    """
    server = Flask("dippm")
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST_BYTES
    app = Dash(
        "dippm",
        server=server,
        assets_folder=str(Path(__file__).with_name("assets")),
        assets_ignore=r"predict\..*",  # of the other door, which is no page of Dash
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
    answer_predict(server, predicting or Predicting())
    gate.stand_before(server, tuple(app.csp_hashes()))
    return server


# `INDEX`, the page's HTML, and `layout`: what Dash draws into it.
#
# Controls are plain HTML that `assets/state.js` fills and reads: those of Dash are lists of options
# with boxes in them, which screen readers cannot tell. Dash holds what is set in stores, asks the
# server when one of them changes, and draws charts.


LOOK_EVERY_MS = 1000
INDEX = Path(__file__).with_name("index.html").read_text()
SET = ("settings", "filters", "streams", "zooms", "view")
"""What a visitor sets: the browser's, sent with each question."""
ASKED = ("wanted", "given", "saving", "taken", "fetched")
"""What a visitor asks for once."""
TOLD = ("news", "listed", "offered", "lines", "chosen", "loaded", "answered", "shown", "compared")
"""What the server answers."""


def layout() -> html.Div:
    """Return the page of a visitor who comes now."""
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
