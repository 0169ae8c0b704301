"""Costs of operators as a table for notebooks and pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.estimate.models.targets import OperatorCost

BAR = "display: inline-block; height: .7em; background: #3b6fb6"
HEADER = ("operator", "module", "ms", "share", "bound")


def operators_html(operators: Iterable[OperatorCost]) -> str:
    """Return a row for each operator, in the order given, with a bar for its share."""
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    return f"<table><tr>{head}</tr>{''.join(map(_row, operators))}</table>"


def _row(cost: OperatorCost) -> str:
    bar = f'<span style="{BAR}; width:{max(cost.share, 0) * 20:.2f}rem"></span>'
    return (
        f"<tr><td>{escape(printable(cost.title))}</td><td>{escape(printable(cost.path))}</td>"
        f"<td>{show(cost.time_ms)}</td><td>{bar} {cost.share:.1%}</td>"
        f"<td>{escape(cost.bound)}</td></tr>"
    )
