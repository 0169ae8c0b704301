"""Reports on processes that share a GPU, models packed on its slices, and models on many GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from dippm.base.answer import cell_text
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.sharing.answer import ENERGY_RULE
from dippm.show.report.answers import AnswerPart, StderrLine, warning_lines
from dippm.show.report.bars import COLOURS, Bar, bars
from dippm.show.report.plotted import apply_style, require_libraries
from dippm.show.report.tables import Column, TerminalTable

if TYPE_CHECKING:
    from dippm.decide.choice import PackedModel, Packing
    from dippm.decide.parallel.estimate import ParallelEstimate
    from dippm.decide.sharing import SharedGpu, SharedProcess

MOST_WARNINGS = 10
"""Maximum number of warnings that are listed."""


# Processes that share a GPU.


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
    for remark in _sharing_remarks(shared):
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
    rows = [_process_cells(process, parts, energies) for process in shared.processes]
    return TerminalTable(columns, rows, " " + shared.title, " " + shared.footer)


def _sharing_remarks(shared: SharedGpu) -> Iterator[str]:
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


def _process_cells(process: SharedProcess, parts: bool, energies: bool) -> list[str]:
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


# Models packed on the slices of a GPU.


def packing_parts(packing: Packing) -> Iterator[AnswerPart]:
    """Yield the models, the free part of the GPU, and warnings."""
    yield packing_table(packing)
    for remark in _packing_remarks(packing):
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
    rows = [_packed_cells(model) + [printable(model.reason)] * left for model in packing.models]
    return TerminalTable(columns, rows, " " + packing.title, " " + packing.footer)


def _packing_remarks(packing: Packing) -> Iterator[str]:
    """Yield the free part of the GPU, and the warnings of the predictions."""
    free, all_ = packing.free_memory_slices, packing.device.memory_slices
    if packing.placed:
        slices = "memory slice is" if free == 1 else "memory slices are"
        yield f" {free} of {all_} {slices} free; latencies are those of each slice alone"
    for warning in packing.warnings[:MOST_WARNINGS]:
        yield f" ! {printable(warning)}"
    if len(packing.warnings) > MOST_WARNINGS:
        yield f" ! and {len(packing.warnings) - MOST_WARNINGS} other warnings, see --json"


def _packed_cells(model: PackedModel) -> list[str]:
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


# One model on many GPUs.


def parallel_parts(found: ParallelEstimate) -> Iterator[AnswerPart]:
    """Yield the comparison of one GPU with all, warnings, and the prediction for one."""
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
