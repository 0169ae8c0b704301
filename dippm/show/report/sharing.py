"""Processes that share a GPU in the terminal, and a plot of throughput over their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.sharing import SharedGpu, SharedProcess
from dippm.decide.sharing.answer import ENERGY_RULE
from dippm.show.report.bars import COLOURS, Bar, bars
from dippm.show.report.parts import AnswerPart, StderrLine
from dippm.show.report.plotted import apply_style, require_libraries
from dippm.show.report.tables import Column, TerminalTable

MOST_WARNINGS = 10


class Rate(NamedTuple):
    """Total throughput of several processes, in samples per second.

    Attributes:
        processes: number of processes.
        predicted: predicted throughput.
        measured: measured throughput; None without one.
    """

    processes: int
    predicted: float
    measured: float | None = None


def sharing_parts(shared: SharedGpu) -> Iterator[AnswerPart]:
    """Yield the processes, totals of the set, and warnings."""
    yield sharing_table(shared)
    for remark in remarks(shared):
        yield StderrLine(remark) if remark.startswith(" !") else remark


def process_bars(shared: SharedGpu) -> str:
    """Return the latency of each process as a bar, split into its own time and its wait."""
    rows = [
        Bar(
            f"{p.source}{f' ({p.part})' * bool(p.part)}",
            p.latency_ms,
            f"× {p.slowdown:.2f}",
            p.latency if shared.measured else None,
            parts=(("alone", min(alone, p.latency_ms)), ("beside", max(0.0, p.latency_ms - alone))),
        )
        for p in shared.processes
        for alone in (p.alone.latency_ms or p.latency_ms,)
    ]
    return bars("latency of a pass, ms", rows)


def sharing_table(shared: SharedGpu) -> TerminalTable:
    """Return a row per process, in the order given."""
    parts = any(process.part for process in shared.processes)
    energies = any(process.energy_j is not None for process in shared.processes)
    columns = [
        Column("model", folds=True),
        Column("batch"),
        *[Column("part", folds=True)] * parts,
        Column("alone ms", rank=3),
        Column("latency ms"),
        Column("90 % interval" if shared.measured else "bounds", rank=1),
        Column("slow-down"),
        Column("samples/s", rank=2),
        Column("needs up to MB"),
        *[Column("energy J", rank=4), Column("idle J", rank=5)] * energies,
    ]
    rows = [_cells(process, parts, energies) for process in shared.processes]
    return TerminalTable(columns, rows, " " + shared.title, " " + shared.footer)


def remarks(shared: SharedGpu) -> Iterator[str]:
    """Yield throughput, memory and power of the set, and warnings."""
    yield f" together {show(shared.samples_per_s)} samples/s"
    if shared.sharing != "mig" and shared.memory_bound_mb is not None:
        place = shared.mig or shared.device.name
        needs = f"{show(shared.memory_bound_mb)} MB at 99 %, {place} has {shared.capacity_mb:,}"
        yield f" memory of all: up to {needs}"
    for misfit in shared.misfits:
        yield f" ! will not fit: {printable(misfit)}"
    if shared.power_w is not None and shared.idle_w is not None:
        free_w = shared.unattributed_idle_w or 0.0
        free = f", {show(free_w)} of them no process's" if free_w > 0.5 else ""
        yield f" board about {show(shared.power_w)} W, idle {show(shared.idle_w)} W{free}"
        yield f" {ENERGY_RULE}"
    elif "energy_j" in shared.absent:
        yield f" energy: not available: {printable(shared.absent['energy_j'])}"
    for warning in shared.warnings[:MOST_WARNINGS]:
        yield f" ! {printable(warning)}"
    if len(shared.warnings) > MOST_WARNINGS:
        yield f" ! and {len(shared.warnings) - MOST_WARNINGS} other warnings, see --json"


def throughput_figure(lines: Mapping[str, Sequence[Rate]]) -> Any:
    """Return a plot of throughput over the number of processes: predicted lines, measured marks.

    Args:
        lines: rates by name, each over increasing numbers of processes.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    from plotly.graph_objects import Figure

    figure = Figure()
    for (name, rates), colour in zip(lines.items(), cycle(COLOURS)):
        figure.add_scatter(
            x=[rate.processes for rate in rates],
            y=[rate.predicted for rate in rates],
            mode="lines",
            line_color=colour,
            name=f"{printable(name)}, predicted",
        )
        measured = [rate for rate in rates if rate.measured is not None]
        if measured:
            figure.add_scatter(
                x=[rate.processes for rate in measured],
                y=[rate.measured for rate in measured],
                mode="markers",
                marker_color=colour,
                name=f"{printable(name)}, measured",
            )
    figure.update_xaxes(title="processes", dtick=1)
    figure.update_yaxes(title="samples per second, all together", rangemode="tozero")
    return apply_style(figure, 380)


def _cells(process: SharedProcess, parts: bool, energies: bool) -> list[str]:
    bound_mb, energy_j = process.memory_bound_mb, process.energy_j
    cells = [printable(process.source), f"{process.batch:,}"]
    cells += [process.part or "all"] * parts
    cells += [
        "–" if process.alone.latency_ms is None else show(process.alone.latency_ms),
        show(process.latency_ms),
        f"{show(process.latency.low)} – {show(process.latency.high)}",
        f"× {process.slowdown:.2f}",
        show(process.samples_per_s),
        "–" if bound_mb is None else show(bound_mb),
    ]
    if energies:
        cells += ["–" if energy_j is None else show(energy_j)]
        cells += ["–" if process.idle_j is None else show(process.idle_j)]
    return cells
