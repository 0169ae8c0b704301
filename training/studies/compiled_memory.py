"""Our liveness peak of compiled mode compared with that of inductor, by model.

    python -m training.studies.compiled_memory resnet18 torchvision:vit_b_16 --precision fp32

Inductor's side: the buffers of a forward that was scheduled for a CUDA device on fake tensors
(`inductor_kernels`), alive from the kernel that writes them to the last that reads them; generated
code overwrites arguments that are not read afterwards, as inductor does. Weights are
not counted; their half-precision copies under autocast are. Schedules are those of
`inductor_trace`, and stay in the same `--cache`.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dippm.estimate.conditions import Precision
from dippm.estimate.models.memory import MemoryFootprint
from training.studies import options
from training.studies.inductor_kernels import CompiledForward
from training.studies.inductor_trace import CACHE, schedule_of
from training.studies.traced_kernels import TracedPrecision
from training.studies.traced_models import graph_of

BLOCK = 512
"""Granularity of the caching allocator in bytes."""
WITHIN = 0.05
WORST = 12


def main(
    models: options.Models = None,
    precision: options.Precision = "amp",
    batch: options.Batch = 4,
    cache: Annotated[Path, typer.Option(help="folder of schedules and graphs")] = CACHE,
    graphs: options.Graphs = None,
    list_of: options.ListOf = None,
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
) -> None:
    """Print the ratios to inductor's peaks, and the worst models."""
    warnings.filterwarnings("ignore")
    console, known = Console(), cast(TracedPrecision, precision)
    found: dict[str, tuple[float, float]] = {}
    specs = [*(models or []), *(list_of.read_text().split() if list_of else [])]
    for spec in track(specs, "Peaks", console=Console(stderr=True)):
        try:
            theirs = peak_bytes(schedule_of(spec, batch, known, False, cache))
            graph = graph_of(spec, cache, graphs)
        except Exception as error:  # one model of a zoo must not stop the others
            console.print(f"{spec}: {type(error).__name__}: {error}"[:300], markup=False)
            continue
        footprint = MemoryFootprint.of(graph, cast(Precision, known), "compiled")
        found[spec] = footprint.peak(batch).total_bytes, theirs
    ratio = {spec: ours / theirs for spec, (ours, theirs) in found.items() if theirs}
    for table in tables(ratio):
        console.print(table)
    if results is not None:
        rows = {s: [round(v / 2**20, 2) for v in pair] for s, pair in sorted(found.items())}
        rows_text = ",\n".join(f'  "{spec}": {json.dumps(pair)}' for spec, pair in rows.items())
        results.write_text("{\n" + rows_text + "\n}\n")


def peak_bytes(forward: CompiledForward) -> float:
    """Return the peak memory of inputs and buffers of a compiled forward pass."""
    holder = {name: held for kernel in forward.kernels for name, held in kernel.held_by}
    last = {
        holder.get(name, name): position
        for position, kernel in enumerate(forward.kernels)
        for name in (*kernel.writes, *kernel.reads)
    }
    kept = {holder.get(name, name) for name in forward.results}
    alive: dict[str, float] = {}
    most = 0.0
    for position, kernel in enumerate(forward.kernels):
        dying = {name for name in alive if last[name] == position and name not in kept}
        free = [alive[name] for name in dying if name in kernel.overwrites]
        made = {holder.get(n, n): size for n, size in zip(kernel.writes, kernel.takes, strict=True)}
        new = {name: -(-size // BLOCK) * BLOCK for name, size in made.items() if name not in alive}
        over = 0.0
        for size in new.values():
            if size in free:
                free.remove(size)
                over += size
        alive |= new
        most = max(most, sum(alive.values()) - over)
        for name in dying:
            del alive[name]
        for name in new:
            if last[name] == position and name not in kept:
                del alive[name]
    return most + forward.input_bytes


def tables(ratio: dict[str, float]) -> tuple[Table, Table]:
    """Return the summary by kind of model, and the worst models."""
    summary = Table("models", "n", "median", "p10", "p90", "within 5 %", "within 10 %")
    language = {s: r for s, r in ratio.items() if s.startswith("transformers:")}
    vision = {s: r for s, r in ratio.items() if s not in language}
    for name, group in (("images", vision), ("transformers", language), ("all", ratio)):
        if group:
            values = np.array(list(group.values()))
            cells = (np.median(values), np.quantile(values, 0.1), np.quantile(values, 0.9))
            close = (f"{np.mean(np.abs(values - 1) <= w):.0%}" for w in (WITHIN, 2 * WITHIN))
            summary.add_row(name, str(len(values)), *(f"{c:.3f}" for c in cells), *close)
    worst = Table("model", "ours / inductor")
    for spec in sorted(ratio, key=lambda s: -abs(np.log(ratio[s])))[:WORST]:
        worst.add_row(spec, f"{ratio[spec]:.3f}")
    return summary, worst


if __name__ == "__main__":
    typer.run(main)
