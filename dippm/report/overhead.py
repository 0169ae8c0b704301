"""The self-test of our own overhead, as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from dippm.measure.selftest import Figure, Report


def overhead_table(report: Report) -> Table:
    """Return what was measured beside what is allowed."""
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = "what sampling costs · " + ", ".join(report.plan.sources)
    for column in ("what", "mean", "95 % interval", "unit", "n", "target", ""):
        table.add_column(column)
    for figure in report.figures:
        verdict = "[bold red]above[/]" if figure.above else "[green]ok[/]"
        target = "" if figure.target is None else f"≤ {figure.target:g}"
        table.add_row(
            figure.what,
            f"{figure.mean:.2f}",
            _interval(figure),
            figure.unit,
            str(figure.count),
            target,
            verdict if target else "",
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
        "interval is"
    )
    if load > cores / 2:
        text += "; other work disturbs these figures, repeat them on a quiet machine"
    return text
