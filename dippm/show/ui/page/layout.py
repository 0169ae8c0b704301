"""`INDEX`, the page's HTML, and `layout`: what Dash draws into it.

Controls are plain HTML that `assets/state.js` fills and reads: those of Dash are lists of options
with boxes in them, which screen readers cannot tell. Dash holds what is set in stores, asks the
server when one of them changes, and draws charts.
"""

from __future__ import annotations

from pathlib import Path

from dash import dcc, html

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
