"""A collected set in the terminal: the main results in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from dippm.base.number_format import show
from dippm.show.report.collected.page import CollectedReport
from dippm.show.report.tables import PIPE_FOLD, shown


def tables(report: CollectedReport) -> Iterator[Any]:
    """Yield a headline, then distributions, noise floor, failures and errors."""
    figures = report.figures
    yield shown(report.title)
    yield (
        f"{figures['rows']:,} rows, {figures['rows_used']:,} usable, "
        f"{figures['families']} families, {figures['architectures']:,} architectures, "
        f"{len(figures['campaigns'])} campaigns, {figures['days']} days"
    )
    table = _table("measured", "n", "5 %", "median", "95 %")
    absent = []
    for target, found in figures["distributions"].items():
        if "absent" in found:
            table.add_row(shown(target), "0", "–", "–", "–")
            absent.append(f"{target} absent: {found['absent']}")
        else:
            values = (show(found[key]) for key in ("p05", "median", "p95"))
            table.add_row(shown(target), f"{found['n']:,}", *values)
    yield table
    yield from map(shown, absent)
    table = _table("noise floor", "configurations", "rows", "median %", "p95 %", "days")
    for floor in figures["noise_floor"]:
        if floor["family"] == "all":
            spread = (f"{floor[key]:.2f}" for key in ("median_percent", "p95_percent"))
            counts = (str(floor[key]) for key in ("configurations", "rows"))
            table.add_row(floor["target"], *counts, *spread, str(floor["days"]))
    yield table
    for target, reason in figures["noise_floor_absent"].items():
        yield shown(f"noise floor of {target} absent: {reason}")
    table = _table("left out", "rows")
    for reason, n in figures["left_out"].items():
        table.add_row(shown(reason), f"{n:,}")
    yield table
    yield from _errors(report)


def _errors(report: CollectedReport) -> Iterator[Any]:
    compared = report.compared
    if compared.points:
        table = _table("predicted against measured", "n", "median APE %", "MAPE %", "inside")
        table.title = shown(compared.checkpoint, "table.title")
        for line in compared.errors():
            if line["family"] == "all":
                errors = (f"{line[key]:.1f}" for key in ("median_ape", "mape"))
                table.add_row(line["target"], str(line["n"]), *errors, f"{line['coverage']:.0%}")
        yield table
    yield from map(shown, compared.remarks)
    for reason, n in compared.absent.items():
        yield shown(f"not predicted ({n} rows): {reason}")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", max_width=PIPE_FOLD)
    return table
