"""A prediction as one self-contained page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.prediction import show
from dippm.printable import json_text, printable
from dippm.report.comparison import remarks
from dippm.report.files import write_text

if TYPE_CHECKING:
    from dippm.comparison import Comparison
    from dippm.models.targets import OperatorCost
    from dippm.prediction import Prediction

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }} caption {{ text-align: left }}
th, td {{ text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd }}
.bar {{ display: inline-block; height: .7em; background: #3b6fb6 }}
</style></head><body><h1>{title}</h1>{body}
<h2>Everything</h2><details><summary>JSON</summary><pre>{document}</pre></details></body></html>
"""


def write_report(path: Path, prediction: Prediction) -> None:
    """Write the page; it needs no network and no other file.

    Raises:
        DippmError: if the file cannot be written.
    """
    write_text(path, render_report(prediction))


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page of a comparison, failures and warnings included.

    Raises:
        DippmError: if the file cannot be written.
    """
    notes = "".join(f"<li>{escape(printable(remark))}</li>" for remark in remarks(comparison))
    title = f"{len(comparison)} predictions"
    if comparison.failures:
        title += f", {len(comparison.failures)} failed"
    body = comparison._repr_html_() + (f"<ul>{notes}</ul>" if notes else "")
    write_text(path, page(title, body, comparison.rows()))


def page(title: str, body: str, document: Any) -> str:
    """Return a whole page: a title, ready markup, and a JSON document to fold out."""
    return PAGE.format(
        title=escape(printable(title)), body=body, document=escape(json_text(document))
    )


def render_report(prediction: Prediction) -> str:
    """Return the page as text."""
    rows = "".join(_row(cost) for cost in prediction.operators)
    head = "<tr><th>operator</th><th>ms</th><th>share</th><th>bound</th></tr>"
    operators = f"<h2>Where the time goes</h2><table>{head}{rows}</table>"
    return page(prediction.title, prediction._repr_html_() + operators, prediction.to_dict())


def _row(cost: OperatorCost) -> str:
    bar = f'<span class="bar" style="width:{max(cost.share, 0) * 20:.2f}rem"></span>'
    return (
        f"<tr><td>{escape(printable(cost.op))}</td><td>{show(cost.time_ms)}</td>"
        f"<td>{bar} {cost.share:.1%}</td><td>{escape(cost.bound)}</td></tr>"
    )
