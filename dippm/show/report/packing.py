"""A packing of models on the slices of a GPU, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.choice import PackedModel, Packing
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import AnswerPart, StderrLine
from dippm.show.report.tables import Column, TerminalTable

MOST_WARNINGS = 10


def packing_parts(packing: Packing) -> Iterator[AnswerPart]:
    """Yield the models, the free part of the GPU, and warnings."""
    yield packing_table(packing)
    for remark in remarks(packing):
        yield StderrLine(remark) if remark.startswith(" !") else remark


def packing_bars(packing: Packing) -> str:
    """Return the memory slices by model, and the memory that each needs of its slice, as bars."""
    placed = sorted(
        ((m, m.placement, m.contender) for m in packing.placed if m.placement and m.contender),
        key=lambda found: found[1].start,
    )
    parts = [(f"{m.source} ({at.profile})", float(at.size)) for m, at, _ in placed]
    all_, free = packing.device.memory_slices, packing.free_memory_slices
    gpu = Bar(packing.device.name, float(all_ - free), f"{free} of {all_} free",
              limit=float(all_), parts=tuple(parts))  # fmt: skip
    needed = [
        Bar(
            f"{m.source} on {at.profile}",
            found.value,
            f"up to {show(c.memory_bound_mb or found.value)} of {c.capacity_mb:,}",
            found.interval,
            float(c.capacity_mb),
        )
        for m, at, c in placed
        if (found := c.estimate("memory_mb")) is not None
    ]
    return bars("memory slices of the GPU", [gpu], limit="all of them") + bars(
        "memory of each model, MB", needed, limit="what its slice has"
    )


def packing_table(packing: Packing) -> TerminalTable:
    """Return a row per model, in the order given."""
    left = bool(packing.left_out)
    columns = [
        Column("model", folds=True),
        Column("slice"),
        Column("at", rank=2),
        Column("usable MB", rank=1),
        Column("needs up to MB"),
        Column("latency ms"),
        Column("90 % interval", rank=1),
        Column("of whole GPU", rank=3),
        *[Column("why not", folds=True)] * left,
    ]
    rows = [_cells(model) + [printable(model.reason)] * left for model in packing.models]
    return TerminalTable(columns, rows, " " + packing.title, " " + packing.footer)


def remarks(packing: Packing) -> Iterator[str]:
    """Yield the free part of the GPU, and the warnings of the predictions."""
    free, all_ = packing.free_memory_slices, packing.device.memory_slices
    if packing.placed:
        slices = "memory slice is" if free == 1 else "memory slices are"
        yield f" {free} of {all_} {slices} free; latencies are those of each slice alone"
    for warning in packing.warnings[:MOST_WARNINGS]:
        yield f" ! {printable(warning)}"
    if len(packing.warnings) > MOST_WARNINGS:
        yield f" ! and {len(packing.warnings) - MOST_WARNINGS} other warnings, see --json"


def _cells(model: PackedModel) -> list[str]:
    c, at = model.contender, model.placement
    if c is None or at is None:
        return [printable(model.source), *["–"] * 5, "", "–"]
    latency, bound_mb = c.estimate("latency_ms"), c.memory_bound_mb
    return [
        printable(model.source),
        at.profile,
        str(at.start),
        f"{c.capacity_mb:,}",
        "–" if bound_mb is None else show(bound_mb),
        "–" if latency is None else show(latency.value),
        f"{show(latency.interval.low)} – {show(latency.interval.high)}" if latency else "",
        "–" if model.slowdown is None else f"× {model.slowdown:.2f}",
    ]
