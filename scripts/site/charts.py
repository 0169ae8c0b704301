"""Charts of the pages: drawn while building, by the code that draws DIPPM's own reports.

A page says `<!-- chart NAME: what it shows -->`; a repository viewer shows nothing there. All
charts share one script, a file of the site, so that a page opens without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from typing import Any

from scripts.site.prose import replaced

SCRIPT = "assets/plotly.min.js"
CHART = re.compile(r"<!-- chart (?P<name>[\w-]+): (?P<caption>.*?) -->", re.DOTALL)
SHAPE = {"batch": 32, "input": "3,224,224"}


def placed(markdown: str, script: str) -> str:
    """Return a page with its charts in place.

    Args:
        markdown: of the page.
        script: where the page finds `SCRIPT`.

    Raises:
        KeyError: if a chart is not one of `CHARTS`.
    """

    def draw(match: re.Match[str]) -> str:
        caption = " ".join(match["caption"].split())
        return (
            f'<figure class="chart">\n{_markup(match["name"])}\n'
            f"<figcaption>{escape(caption)}</figcaption></figure>\n"
        )

    found = replaced(markdown, CHART, draw)
    if found == markdown:
        return markdown
    return f'{found}\n\n<script src="{escape(script)}"></script>\n<script>drawCharts()</script>\n'


def script() -> str:
    """Return what draws charts: plotly's own library, and a function that waits for it."""
    from plotly.offline import get_plotlyjs

    return f"{get_plotlyjs()}\n{DRAW}"


DRAW = """
function drawCharts() {
  const narrow = window.matchMedia("(max-width: 600px)").matches;
  for (const data of document.querySelectorAll("script.chart-data")) {
    const figure = JSON.parse(data.textContent), place = data.previousElementSibling;
    if (narrow) {
      if (figure.layout.legend?.orientation !== "h")
        figure.layout.legend = {orientation: "h", x: 0, y: -0.2, yanchor: "top"};
      figure.layout.font = {...figure.layout.font, size: 10};
    }
    Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displaylogo: false,
      displayModeBar: false, scrollZoom: false});
  }
}
"""


@cache
def _markup(name: str) -> str:
    """Return a chart as a place to draw in and its data, which a browser does not run."""
    figure = CHARTS[name]()
    figure.update_layout(autosize=True, width=None, dragmode=False)
    height = figure.layout.height or 450
    data = figure.to_json().replace("</", "<\\/")
    return (
        f'<div class="drawn" style="height: {height}px"></div>'
        f'<script type="application/json" class="chart-data">{data}</script>'
    )


def _sweep() -> Any:
    import dippm
    from dippm.show.report.sweep_page import batch_figure
    from scripts.sample_models import vgg16_pt

    return batch_figure(dippm.sweep(vgg16_pt(), batch="1:256", input=SHAPE["input"], device="A100"))


def _front() -> Any:
    import dippm
    from dippm.show.report.choice_page import front_figure
    from scripts.sample_models import vgg16_pt

    return front_figure(dippm.choose(vgg16_pt(), devices="all", by="latency", **SHAPE))


def _roofline() -> Any:
    from dippm.show.report.explanation_page import roofline_figure

    return roofline_figure(_explained())


def _flame() -> Any:
    from dippm.show.report.explanation_page import flame_figure

    return flame_figure(_explained())


@cache
def _explained() -> Any:
    import dippm
    from scripts.sample_models import vgg16_pt

    return dippm.explain(vgg16_pt(), device="A100", **SHAPE)


def _errors() -> Any:
    from scripts.site.accuracy import error_figure

    return error_figure()


CHARTS: Mapping[str, Callable[[], Any]] = {
    "sweep": _sweep,
    "front": _front,
    "roofline": _roofline,
    "flame": _flame,
    "errors": _errors,
}
"""Name → what draws it."""
