"""Reports on sweeps over batches and power limits: terminal tables, and pages with plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dippm.base.answer import cell_text
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.decide.batch_sweep import BatchCapacity, BatchSweep
from dippm.decide.power_sweep import PowerPoint, PowerSweep
from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.models.targets import Estimate
from dippm.show.report.answers import ESTIMATES, AnswerPart, StderrLine, estimate_row, warning_lines
from dippm.show.report.plotted import (
    apply_style,
    figure_markup,
    log_ticks,
    require_libraries,
    script,
)
from dippm.show.report.predictions import comparison_remarks
from dippm.show.report.shell import note_list, page, table_markup
from dippm.show.report.tables import Column, TerminalTable

# Terminal.


BAR = 16
"""Maximum number of characters of a bar in a table."""
EIGHTHS = " ▏▎▍▌▋▊▉█"


def batch_parts(sweep: BatchSweep) -> Iterator[AnswerPart]:
    """Yield the batches, the largest that fit, warnings, and the prediction of the first batch."""
    yield batch_table(sweep)
    yield from fitting(sweep)
    yield from map(StderrLine, comparison_remarks(sweep.comparison()))
    yield sweep.predictions[0]


def power_parts(sweep: PowerSweep) -> Iterator[AnswerPart]:
    """Yield the limits, warnings, and the prediction without a limit."""
    yield power_table(sweep)
    yield from warning_lines(sweep.warnings)
    yield sweep.prediction


def point_parts(point: PowerPoint) -> Iterator[AnswerPart]:
    """Yield the table of one limit."""
    labels = {"latency_ms": "latency ms", "power_w": "power W", "energy_j": "energy J"}
    rows = [
        estimate_row(label, Estimate(getattr(point, name), point.intervals[name]))
        for name, label in labels.items()
    ]
    yield TerminalTable(
        ESTIMATES, rows, f" power limit {point.limit_w:g} W{', estimated' * point.estimated}"
    )


def batch_table(sweep: BatchSweep) -> TerminalTable:
    """Return latency, throughput and memory by batch."""
    rows = sweep.rows()
    fastest = max((row["samples_per_s"] or 0 for row in rows), default=0)
    columns = (
        Column("batch"),
        Column("latency ms"),
        Column("90 % interval", rank=3),
        Column("samples/s"),
        Column("", rank=2),
        Column("memory MB"),
        Column("energy J", rank=4),
        Column("MIG", rank=1),
    )
    cells = [
        (
            f"{row['batch']:,}",
            cell_text(row["latency_ms"]),
            between(row["latency_ms_low"], row["latency_ms_high"]),
            cell_text(row["samples_per_s"]),
            bar(row["samples_per_s"] or 0, fastest),
            cell_text(row["memory_mb"]) + ("" if row["fits"] is not False else " !"),
            cell_text(row["energy_j"]),
            row["mig"] or "–",
        )
        for row in rows
    ]
    caption = " " + printable(sweep.predictions[0].footer)
    if any(row["fits"] is False for row in rows):
        caption = f" ! may not fit {sweep.places[0].name}\n{caption}"
    return TerminalTable(columns, cells, " " + sweep.title, caption)


def fitting(sweep: BatchSweep) -> Iterator[str]:
    """Yield the largest batch that fits each place at 99 % confidence."""
    if all(p.memory_bound_mb is None for p in sweep.predictions):
        yield f" largest batch unknown: {sweep.predictions[0].absent.get('memory_mb', '')}"
        return
    whole, *slices = sweep.places
    yield f" largest batch that fits {whole.name} at 99 %: {_largest_batch_text(whole)}"
    if slices:
        listed = ", ".join(f"{place.name} {_largest_batch_text(place)}" for place in slices)
        yield f" on its slices: {listed}"


def power_table(sweep: PowerSweep) -> TerminalTable:
    """Return latency, power and energy by power limit."""
    most = max(point.energy_j for point in sweep.points)
    columns = (
        Column("limit W"),
        Column("latency ms"),
        Column("90 % interval", rank=3),
        Column("power W"),
        Column("energy J"),
        Column("", rank=2),
    )
    cells = [
        (
            f"{point.limit_w:g}",
            show(point.latency_ms),
            between(point.intervals["latency_ms"].low, point.intervals["latency_ms"].high),
            show(point.power_w),
            show(point.energy_j) + (" *" if point is sweep.thriftiest else ""),
            bar(point.energy_j, most),
        )
        for point in sweep.points
    ]
    footer = printable(sweep.prediction.footer)
    caption = f" * least energy\n {footer}, estimated at lower limits"
    return TerminalTable(columns, cells, " " + sweep.prediction.title, caption)


def bar(value: float, most: float) -> str:
    """Return a bar of at most `BAR` characters."""
    eighths = round(8 * BAR * value / most) if most > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _largest_batch_text(place: BatchCapacity) -> str:
    if place.largest_batch is None:
        return "none"
    return f"{place.largest_batch:,}" + (" or more" if place.largest_batch == MAX_BATCH else "")


# Pages with plots.


BLUE, RED, GREY = "#3b6fb6", "#c23b4e", "#667386"
BAND = "rgba(59, 111, 182, 0.18)"


def batch_page(sweep: BatchSweep) -> str:
    """Return the page of a batch sweep.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    notes = [*fitting(sweep), *(f"! {warning}" for warning in sweep.to_dict()["warnings"])]
    title = f"{sweep.title} · batch sweep"
    return _page(title, batch_figure(sweep), sweep, notes, batch_table(sweep))


def batch_figure(sweep: BatchSweep) -> Any:
    """Return plots of latency, throughput and memory over the batch, with capacities.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    rows = sweep.rows()
    x = [row["batch"] for row in rows]
    plots = {
        title: [_estimate_ends(p.estimate(name)) for p in sweep.predictions]
        for title, name in (
            ("latency, ms", "latency_ms"),
            ("samples per second", "samples_per_s"),
            ("memory, MB", "memory_mb"),
        )
    }
    figure = _stacked_figure(x, plots, "batch size", log=True)
    if any(row["memory_mb"] for row in rows):
        _draw_capacities(figure, sweep.places, x, row=len(plots))
    return figure


def power_page(sweep: PowerSweep) -> str:
    """Return the page of a power-limit sweep.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    x = [point.limit_w for point in sweep.points]
    plots = {
        title: [
            _estimate_ends(Estimate(getattr(point, target), point.intervals[target]))
            for point in sweep.points
        ]
        for title, target in (
            ("latency, ms", "latency_ms"),
            ("power, W", "power_w"),
            ("energy of a batch, J", "energy_j"),
        )
    }
    figure = _stacked_figure(x, plots, "power limit of the board, W", log=False)
    title = f"{sweep.prediction.title} · power limits, estimated"
    notes = [f"! {warning}" for warning in sweep.warnings]
    return _page(title, figure, sweep, notes, power_table(sweep))


def _page(
    title: str,
    figure: Any,
    sweep: BatchSweep | PowerSweep,
    notes: Sequence[str],
    table: TerminalTable,
) -> str:
    body = figure_markup(figure, "sweep") + note_list(notes) + table_markup(table)
    body += note_list(table.caption.split("\n"))
    return page(title, body, sweep.to_dict(), script=script())


def _stacked_figure(
    x: Sequence[float], plots: Mapping[str, Sequence[Mapping[str, Any]]], title: str, *, log: bool
) -> Any:
    """Return stacked plots, each a line within the band of its 90 % intervals."""
    require_libraries()
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=len(plots), shared_xaxes=True, vertical_spacing=0.06, subplot_titles=list(plots)
    )
    for row, (name, points) in enumerate(plots.items(), 1):
        known = [(at, p) for at, p in zip(x, points, strict=True) if p["value"] is not None]
        if not known:
            continue
        places = [at for at, _ in known]
        edges = [p["high"] for _, p in known] + [p["low"] for _, p in reversed(known)]
        figure.add_scatter(
            x=places + places[::-1],
            y=edges,
            mode="lines",
            fill="toself",
            fillcolor=BAND,
            line={"width": 0},
            hoverinfo="skip",
            name="90 % interval",
            showlegend=row == 1,
            row=row,
            col=1,
        )
        figure.add_scatter(
            x=places,
            y=[p["value"] for _, p in known],
            mode="lines+markers",
            line_color=BLUE,
            name="predicted",
            showlegend=row == 1,
            hovertemplate=f"%{{x}}: %{{y:.4g}}<extra>{escape(name)}</extra>",
            row=row,
            col=1,
        )
        heights = [p[name] for _, p in known for name in ("low", "high")]
        figure.update_yaxes(log_ticks(heights) if log else {}, row=row, col=1)
    figure.update_xaxes(log_ticks(x) if log else {})
    figure.update_xaxes(title=title, row=len(plots), col=1)
    figure = apply_style(figure, 280 * len(plots))
    return figure.update_layout(margin={"t": 64})  # titles are below plotly's buttons


def _draw_capacities(
    figure: Any, places: Sequence[BatchCapacity], x: Sequence[float], *, row: int
) -> None:
    """Draw the memory of the GPU and its slices, and the largest batch that fits each.

    They are traces, because shapes would not extend the axes.
    """
    by_memory: dict[int, list[BatchCapacity]] = {}
    is_named = False
    for place in places:
        by_memory.setdefault(place.memory_mb, []).append(place)
    for memory_mb, same in by_memory.items():
        names = " / ".join(place.name for place in same)
        is_whole = same[0] is places[0]
        colour = RED if is_whole else GREY
        figure.add_scatter(
            x=[min(x), max(x)],
            y=[memory_mb, memory_mb],
            mode="lines+text",
            line={"color": colour, "width": 1, "dash": "dot"},
            text=["", names] if is_whole else [names, ""],
            textposition="top left" if is_whole else "top right",
            textfont={"size": 10, "color": colour},
            cliponaxis=False,
            name=names,
            hoverinfo="skip",
            showlegend=False,
            row=row,
            col=1,
        )
        for batch, those in _names_by_batch(same, 2 * max(x)).items():
            figure.add_scatter(
                x=[batch],
                y=[memory_mb],
                mode="markers",
                marker={"color": colour, "symbol": "x", "size": 7},
                hovertemplate=f"{escape(those)}: at most {batch:,} at 99 %<extra></extra>",
                name="largest batch that fits",
                showlegend=not is_named,
                row=row,
                col=1,
            )
            is_named = True


def _names_by_batch(places: Sequence[BatchCapacity], most: float) -> dict[int, str]:
    """Return the names of places by their largest batch, where that is at most `most`."""
    found: dict[int, str] = {}
    for place in places:
        batch = place.largest_batch
        if batch is not None and batch <= most:
            found[batch] = " / ".join(filter(None, (found.get(batch), place.name)))
    return found


def _estimate_ends(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"value": None}
    return {"value": found.value, "low": found.interval.low, "high": found.interval.high}
