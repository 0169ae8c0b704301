"""The self-test of DIPPM's own overhead as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from dippm.measure.selftest import Figure, Report

if TYPE_CHECKING:
    from dippm.runs.tracking.run_cost import RunCost

OTHERS = (
    ("UMLAUT, CPU and memory", "–", "0.44", "1.8", "305", "1.5–1.7 CPU-s"),
    ("codecarbon", "0.16", "0.75", "–", "80", "1.6 s"),
    ("MLflow system metrics", "1.0", "7.9", "–", "226", "2.2–2.6 CPU-s"),
    ("radT, top and free", "5.7 CPU-s a run", "–", "–", "≈ 330", "16.5 s"),
    ("perun", "5.1 CPU-s a run", "–", "–", "≈ 88", "6.9 s"),
)
"""Overhead of other tools in November 2026 next to a sleep of 10 s: % of a core at 1, 10 and 100
Hz, MiB, and start-up time; measured on two shared cores without a GPU."""
STYLES = {"ok": "green", "undecided": "yellow", "above": "bold red"}


def overhead_table(report: Report) -> Table:
    """Return measured values with their limits."""
    table = _figures_table(report.figures)
    table.title = "what sampling costs · " + ", ".join(report.plan.sources)
    table.caption = _caption(report)
    return table


def run_cost_table(cost: RunCost) -> Table:
    """Return the cost of tracking a command with its limits."""
    table = _figures_table(cost.figures)
    table.title = f"what tracking a command of {cost.seconds:g} s costs"
    table.caption = f"load {cost.load:.1f} before; radT 0.2.30: 16.5 s and 330 MB beside 15 s"
    return table


def _figures_table(figures: Iterable[Figure]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    for column in ("what", "mean", "95 % interval", "unit", "n", "target", ""):
        table.add_column(column, overflow="fold")
    for figure in figures:
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
    return table


def others_table(report: Report) -> Table:
    """Return DIPPM's values above those of other tools, which were measured elsewhere."""
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = "beside other tools"
    for column in ("", "1 Hz, % of a core", "10 Hz", "100 Hz", "RSS, MiB", "start"):
        table.add_column(column, overflow="fold")
    found = {figure.what: figure.mean for figure in report.figures}
    start_ms = found["sampler CPU to its first reading"]
    table.add_row(
        "DIPPM, here and now",
        *(_share(found.get(f"sampler CPU at {hz} Hz")) for hz in (1, 10, 100)),
        f"{found['sampler resident memory']:.0f}",
        f"{start_ms / 1e3:.2f} CPU-s",
        style="bold",
    )
    for row in OTHERS:
        table.add_row(*row)
    table.caption = "the others: two shared cores without a GPU, a sleep of 10 s, November 2026"
    return table


def _share(percent: float | None) -> str:
    return "–" if percent is None else f"{percent:.2f}"


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
    if report.repeats < report.plan.repeats:
        text += (
            f"; {report.repeats} of {report.plan.repeats} repetitions: no more fitted into "
            f"{report.plan.limit_s / 60:g} min (--minutes)"
        )
    if load > cores / 2:
        text += "; other work disturbs these figures, repeat them on a quiet machine"
    return text
