"""Sweeps in the terminal: a table with a bar per row, and what fits where."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.numbers import show
from dippm.base.printable import printable
from dippm.decide.batch_sweep import BatchSweep, Place
from dippm.decide.power_sweep import PowerSweep
from dippm.estimate.conditions import MAX_BATCH
from dippm.show.report.tables import Column, Fitted

BAR = 16
EIGHTHS = " ▏▎▍▌▋▊▉█"


def batch_table(sweep: BatchSweep) -> Fitted:
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
            _number(row["latency_ms"]),
            _between(row["latency_ms_low"], row["latency_ms_high"]),
            _number(row["samples_per_s"]),
            bar(row["samples_per_s"] or 0, fastest),
            _number(row["memory_mb"]) + ("" if row["fits"] is not False else " !"),
            _number(row["energy_j"]),
            row["mig"] or "–",
        )
        for row in rows
    ]
    caption = " " + printable(sweep.predictions[0].footer)
    if any(row["fits"] is False for row in rows):
        caption = f" ! may not fit {sweep.places[0].name}\n{caption}"
    return Fitted(columns, cells, " " + sweep.title, caption)


def fitting(sweep: BatchSweep) -> Iterator[str]:
    """Yield what is the largest batch that fits, at 99 % confidence, on each place."""
    if all(p.memory_bound_mb is None for p in sweep.predictions):
        yield f" largest batch unknown: {sweep.predictions[0].absent.get('memory_mb', '')}"
        return
    whole, *slices = sweep.places
    yield f" largest batch that fits {whole.name} at 99 %: {_largest(whole)}"
    if slices:
        listed = ", ".join(f"{place.name} {_largest(place)}" for place in slices)
        yield f" on its slices: {listed}"


def power_table(sweep: PowerSweep) -> Fitted:
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
            _between(point.intervals["latency_ms"].low, point.intervals["latency_ms"].high),
            show(point.power_w),
            show(point.energy_j) + (" *" if point is sweep.thriftiest else ""),
            bar(point.energy_j, most),
        )
        for point in sweep.points
    ]
    footer = printable(sweep.prediction.footer)
    caption = f" * least energy\n {footer}, estimated at lower limits"
    return Fitted(columns, cells, " " + sweep.prediction.title, caption)


def bar(value: float, most: float) -> str:
    """Return a bar of at most `BAR` characters."""
    eighths = round(8 * BAR * value / most) if most > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _largest(place: Place) -> str:
    if place.largest_batch is None:
        return "none"
    return f"{place.largest_batch:,}" + (" or more" if place.largest_batch == MAX_BATCH else "")


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{show(low)} – {show(high)}"


def _number(value: float | None) -> str:
    return "–" if value is None else show(value)
