"""Plots on pages: plotly embedded in the file, one style, axes with full numbers."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, isfinite, log10
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.show.report.shell import page

OFFLINE = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
}
OTHER = "#8d99ae"


class ReportNotInstalledError(DippmError, ImportError):
    """The libraries of reports are missing."""


def require_libraries() -> None:
    """Check that a page can be made, before any other work.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise ReportNotInstalledError(
            f"a page needs {error.name}", "Install it: pip install 'dippm[report]'."
        ) from error


def render(template: str, *, title: str, **values: Any) -> str:
    """Return a page with plots.

    Args:
        template: Jinja template of the content below the heading; values are escaped.
        title: title of the page.
        values: values of the template.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = _number
    return page(title, environment.from_string(template).render(**values), script=script())


def script() -> str:
    """Return plotly's script, for the head of a page with `figure_markup` figures.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def figure_markup(figure: Any, name: str | None = None) -> str:
    """Return a figure as markup that needs `script`; `name` is its id on the page."""
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=OFFLINE)
    return html


def escape_tags(text: str) -> str:
    """Escape text for plotly, which otherwise interprets tags such as links."""
    from html import escape

    return escape(printable(text), quote=False)


def apply_style(figure: Any, height: int) -> Any:
    """Apply DIPPM's style to a plotly figure, and return it.

    The legend is below the figure, away from plotly's buttons and the points. Numbers are written
    out, and text in bars and boxes is left out where it would be too small to read.
    """
    from plotly.colors import qualitative

    height = max(260, height)
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(exponentformat="none", separatethousands=True)
    return figure.update_layout(
        colorway=qualitative.Dark24,
        template="plotly_white",
        height=height,
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"l": 10, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "x": 0, "y": -76 / (height - 80), "yanchor": "top"},
    )


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Return settings of a logarithmic plotly axis with ticks at 1, 2 and 5 of each power of ten.

    By default plotly writes a bare "2" and "5" between powers of ten.
    """
    there = [value for value in values if value > 0 and isfinite(value)]
    if not there:
        return {"type": "log"}
    low, high = floor(log10(min(there))), ceil(log10(max(there)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    places = [n * 10.0**power for power in range(low, high + 1) for n in steps]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [f"{place:,.6g}" for place in places],
    }


def _number(value: Any) -> str:
    return "–" if value is None else show(float(value))
