"""The self-test of our own overhead, as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from dippm.measure.selftest import Figure, Report

STYLES = {"ok": "green", "undecided": "yellow", "above": "bold red"}


def overhead_table(report: Report) -> Table:
    """Return what was measured beside what is allowed."""
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = "what sampling costs · " + ", ".join(report.plan.sources)
    for column in ("what", "mean", "95 % interval", "unit", "n", "target", ""):
        table.add_column(column, overflow="fold")
    for figure in report.figures:
        style = STYLES.get(figure.verdict, "")
        target = "" if figure.target is None else f"≤ {figure.target:g}"
        table.add_row(
            figure.what,
            f"{figure.mean:.2f}",
            _interval(figure),
            figure.unit,
            str(figure.count),
            target,
            f"[{style}]{figure.verdict}[/]" if style else "",
        )
    table.caption = _caption(report)
    return table


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "–"
    return f"{figure.low:.2f} – {figure.high:.2f}"


def _caption(report: Report) -> str:
    cores, load = report.machine["cores"], report.machine["load"]
    text = (
        f"{cores} cores, load {load:.1f} before; a slow-down is above its target when its whole "
        "interval is, and undecided while the interval holds it (--repeats)"
    )
    if load > cores / 2:
        text += "; other work disturbs these figures, repeat them on a quiet machine"
    return text
