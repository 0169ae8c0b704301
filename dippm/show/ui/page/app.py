"""`application`: the page as a program that answers HTTP."""

from __future__ import annotations

from pathlib import Path

from dash import Dash
from flask import Flask

from dippm.show.ui.connections import LARGEST_REQUEST_BYTES
from dippm.show.ui.gate import Gate
from dippm.show.ui.library import Library
from dippm.show.ui.page.charts import answer_charts
from dippm.show.ui.page.files import answer_files
from dippm.show.ui.page.layout import INDEX, layout
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
