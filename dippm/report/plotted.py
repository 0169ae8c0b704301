"""Pages with plots: one head and style, plotly within the file, and nothing from a network."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from dippm.errors import DippmError
from dippm.figures import show
from dippm.printable import printable

BASE = "plotted.html.jinja"
"""The template that every such page extends: it has the blocks "head" and "body"."""
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
    """Check that a page can be made, before any work is done for it.

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


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: text in Jinja's language that extends `BASE`; its values are escaped.
        values: of the template; "title" is that of the page.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from jinja2 import DictLoader, Environment
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    base = files("dippm.report").joinpath("templates", BASE).read_text(encoding="utf-8")
    environment = Environment(
        loader=DictLoader({BASE: base}), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    page: str = environment.from_string(template).render(plotly=Markup(get_plotlyjs()), **values)
    return page


def script() -> str:
    """Return plotly itself, for the head of a page whose body has `drawn` figures."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def drawn(figure: Any, name: str | None = None) -> str:
    """Return a figure as markup that needs `script`; `name` is its identity on the page."""
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=OFFLINE)
    return html


def safe(text: str) -> str:
    """Return text that plotly shows as it is: it draws tags such as links."""
    from html import escape

    return escape(printable(text), quote=False)


def sized(figure: Any, height: int) -> Any:
    """Give a plotly figure the looks of the house, and return it."""
    from plotly.colors import qualitative

    return figure.update_layout(
        colorway=qualitative.Dark24,
        template="plotly_white",
        height=max(260, height),
        margin={"l": 10, "r": 10, "t": 30, "b": 40},
    )


def _number(value: Any) -> str:
    return "–" if value is None else show(float(value))
