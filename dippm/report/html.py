"""A prediction as one self-contained page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import DippmError
from dippm.prediction import show
from dippm.printable import json_text, printable

if TYPE_CHECKING:
    from dippm.models.targets import OperatorCost
    from dippm.prediction import Prediction

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }} caption {{ text-align: left }}
th, td {{ text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd }}
.bar {{ display: inline-block; height: .7em; background: #3b6fb6 }}
</style></head><body><h1>{title}</h1>{answer}<h2>Where the time goes</h2>{operators}
<h2>Everything</h2><details><summary>JSON</summary><pre>{document}</pre></details></body></html>
"""


def write_report(path: Path, prediction: Prediction) -> None:
    """Write the page; it needs no network and no other file.

    Raises:
        DippmError: if the file cannot be written.
    """
    try:
        path.write_text(render_report(prediction), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DippmError(f"cannot write {path}: {reason}", "Choose another place.") from error


def render_report(prediction: Prediction) -> str:
    """Return the page as text."""
    rows = "".join(_row(cost) for cost in prediction.operators)
    head = "<tr><th>operator</th><th>ms</th><th>share</th><th>bound</th></tr>"
    return PAGE.format(
        title=escape(prediction.title),
        answer=prediction._repr_html_(),
        operators=f"<table>{head}{rows}</table>",
        document=escape(json_text(prediction.to_dict())),
    )


def _row(cost: OperatorCost) -> str:
    bar = f'<span class="bar" style="width:{max(cost.share, 0) * 20:.2f}rem"></span>'
    return (
        f"<tr><td>{escape(printable(cost.op))}</td><td>{show(cost.time_ms)}</td>"
        f"<td>{bar} {cost.share:.1%}</td><td>{escape(cost.bound)}</td></tr>"
    )
