"""An estimate for many GPUs in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.answer import cell_text
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.parallel.estimate import ParallelEstimate
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import AnswerPart, warning_lines
from dippm.show.report.tables import Column, TerminalTable


def parallel_parts(found: ParallelEstimate) -> Iterator[AnswerPart]:
    """Yield one GPU and all GPUs, warnings, and the command that checks the one."""
    yield parallel_table(found)
    yield from warning_lines(found.warnings)
    yield found.prediction


def parallel_table(found: ParallelEstimate) -> TerminalTable:
    """Return one GPU and all GPUs side by side."""
    one = found.prediction
    assert one.latency_ms is not None
    batch = one.conditions.batch
    columns = (Column(""), Column("one GPU, predicted"), Column("all, estimated"))
    rows = [
        ("step ms", show(one.latency_ms), show(found.step_ms)),
        ("samples of a step", f"{batch:,}", f"{found.samples:,}"),
        ("samples/s", show(1e3 * batch / one.latency_ms), show(found.samples_per_s)),
        ("speed-up", "1", f"{found.speedup:.2f} ({found.efficiency:.0%} of {found.plan.gpus:,})"),
        ("exchange ms", "–", show(found.exchange_ms)),
        ("  waited for ms", "–", show(found.exposed_ms)),
        ("idle in the pipeline", "–", f"{found.idle_share:.1%}"),
        ("memory of a GPU MB", cell_text(one.memory_mb), cell_text(found.memory_mb)),
        ("energy of a step J", cell_text(one.energy_j), cell_text(found.energy_j)),
    ]
    notes = [one.footer]
    kernels = len({cost.node for cost in one.operators} - {None})
    if found.plan.tensor > 1:
        notes.append(
            f"{found.split_operators:,} of {kernels:,} operators are split, "
            f"each over {found.plan.tensor} GPUs"
        )
    notes += [f"{name} not available: {printable(why)}" for name, why in found.absent.items()]
    return TerminalTable(
        columns, rows, " " + parallel_title(found), "\n".join(" " + note for note in notes)
    )


def step_bars(found: ParallelEstimate) -> str:
    """Return step time and memory of one GPU and of all GPUs as bars."""
    one = found.prediction
    assert one.latency_ms is not None
    interval = one.intervals.get("latency_ms")
    steps = [Bar("one GPU, predicted", one.latency_ms, f"{show(one.latency_ms)} ms", interval)]
    exposed = (("computing", found.step_ms - found.exposed_ms), ("waiting", found.exposed_ms))
    steps.append(Bar("all, estimated", found.step_ms, f"{show(found.step_ms)} ms", parts=exposed))
    capacity_mb = float(one.conditions.device.memory_mb)
    memory = [
        Bar(name, value, f"{show(value)} MB", limit=capacity_mb)
        for name, value in (("one GPU", one.memory_mb), ("each of all", found.memory_mb))
        if value is not None
    ]
    return bars("a step, ms", steps) + bars(
        "memory of a GPU, MB", memory, limit=f"it has {capacity_mb:,.0f} MB"
    )


def parallel_title(found: ParallelEstimate) -> str:
    """Return model, conditions and layout in one printable line."""
    plan = found.plan
    degrees = {"data": plan.data, "tensor": plan.tensor, "pipeline": plan.pipeline}
    layout = " × ".join(f"{name} {n}" for name, n in degrees.items() if n > 1) or "data 1"
    joined = plan.link.name + (f", {plan.nodes} nodes, {plan.network.name}" if plan.network else "")
    parts = [found.prediction.title, f"{plan.gpus:,} GPUs ({joined})", layout]
    if plan.micro_batches > 1:
        parts.append(f"{plan.micro_batches} micro-batches")
    parts += ["one process"] * plan.one_process
    return printable(" · ".join(parts))
