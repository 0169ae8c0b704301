"""Sweeps in the terminal: a table with a bar per row, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.answer import cell_text
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.decide.batch_sweep import BatchCapacity, BatchSweep
from dippm.decide.power_sweep import PowerPoint, PowerSweep
from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.models.targets import Estimate
from dippm.show.report.comparison import remarks
from dippm.show.report.parts import ESTIMATES, AnswerPart, StderrLine, estimate_row, warning_lines
from dippm.show.report.tables import Column, TerminalTable

BAR = 16
EIGHTHS = " ▏▎▍▌▋▊▉█"


def batch_parts(sweep: BatchSweep) -> Iterator[AnswerPart]:
    """Yield the batches, the largest that fit, warnings, and the command that checks the first."""
    yield batch_table(sweep)
    yield from fitting(sweep)
    yield from map(StderrLine, remarks(sweep.comparison()))
    yield sweep.predictions[0]


def power_parts(sweep: PowerSweep) -> Iterator[AnswerPart]:
    """Yield the limits, warnings, and the command that checks the prediction."""
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
    yield f" largest batch that fits {whole.name} at 99 %: {_largest(whole)}"
    if slices:
        listed = ", ".join(f"{place.name} {_largest(place)}" for place in slices)
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


def _largest(place: BatchCapacity) -> str:
    if place.largest_batch is None:
        return "none"
    return f"{place.largest_batch:,}" + (" or more" if place.largest_batch == MAX_BATCH else "")
