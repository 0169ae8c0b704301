"""An estimate for many GPUs in the terminal."""

from __future__ import annotations

from dippm.figures import show
from dippm.parallel.estimate import ParallelEstimate
from dippm.printable import printable
from dippm.report.tables import Column, Fitted


def parallel_table(found: ParallelEstimate) -> Fitted:
    """Return one GPU beside all of them."""
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
        ("memory of a GPU MB", _number(one.memory_mb), _number(found.memory_mb)),
        ("energy of a step J", _number(one.energy_j), _number(found.energy_j)),
    ]
    notes = [one.footer]
    kernels = len({cost.node for cost in one.operators} - {None})
    if found.plan.tensor > 1:
        notes.append(
            f"{found.split_operators:,} of {kernels:,} operators are split, "
            f"each over {found.plan.tensor} GPUs"
        )
    notes += [f"{name} not available: {printable(why)}" for name, why in found.absent.items()]
    return Fitted(
        columns, rows, " " + parallel_title(found), "\n".join(" " + note for note in notes)
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


def _number(value: float | None) -> str:
    return "–" if value is None else show(value)
