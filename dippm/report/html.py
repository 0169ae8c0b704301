"""A prediction as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.module_tree import MAX_DEPTH
from dippm.operator_markup import operators_html
from dippm.printable import json_text, printable
from dippm.report.comparison import remarks
from dippm.report.files import write_text
from dippm.report.tables import Fitted

if TYPE_CHECKING:
    from dippm.comparison import Comparison
    from dippm.prediction import Prediction

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }} caption {{ text-align: left }}
th, td {{ text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd }}
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
    notes = [*remarks(comparison)]
    title = f"{len(comparison)} predictions"
    if comparison.failures:
        title += f", {len(comparison.failures)} failed"
    body = comparison._repr_html_() + (listed(notes) if notes else "")
    write_text(path, page(title, body, comparison.rows()))


def page(title: str, body: str, document: Any) -> str:
    """Return a whole page: a title, ready markup, and a JSON document to fold out."""
    return PAGE.format(
        title=escape(printable(title)), body=body, document=escape(json_text(document))
    )


def listed(notes: Iterable[str]) -> str:
    """Return notes as a list."""
    items = (f"<li>{escape(printable(note.strip()))}</li>" for note in notes)
    return f"<ul>{''.join(items)}</ul>"


def table_markup(table: Fitted, attributes: str = "") -> str:
    """Return the columns and rows of a table, whole; its element has these attributes."""
    head = "".join(f"<th>{escape(printable(column.name))}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return f"<table {attributes}><tr>{head}</tr>{rows}</table>"


def render_report(prediction: Prediction) -> str:
    """Return the page as text."""
    modules = prediction.tree._repr_html_(depth=MAX_DEPTH)
    body = f"{prediction.answer_html()}<h2>By module</h2>{modules}"
    if prediction.operators:
        body += f"<h2>By operator</h2>{operators_html(prediction.operators)}"
    document = {**prediction.to_dict(), "tree": prediction.tree.to_dict()}
    return page(prediction.title, body, document)
