"""Predicted and measured operators as a table for the terminal."""

from __future__ import annotations

from dippm.base.number_format import show
from dippm.measure.verification import OperatorVerification
from dippm.show.report.tables import Column, TerminalTable

COLUMNS = (
    Column("operator", folds=True),
    Column("module", folds=True),
    Column("measured ms"),
    Column("predicted ms"),
    Column("error"),
    Column("kernels", rank=1),
)


def operator_check_table(operators: OperatorVerification, count: int) -> TerminalTable:
    """Return the slowest operators with predicted and measured times."""
    rows = [
        (
            check.op or "(no operator)",
            check.path,
            "" if check.measured_ms is None else show(check.measured_ms),
            "" if check.predicted_ms is None else show(check.predicted_ms),
            "" if check.error is None else f"{check.error:+.0%}",
            str(check.kernels) if check.kernels else "",
        )
        for check in operators.checks[:count]
    ]
    return TerminalTable(COLUMNS, rows)
