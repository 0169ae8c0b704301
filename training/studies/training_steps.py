"""Our training step compared with PyTorch's by model: bytes and kernels of each pass, kept memory.

    python -m training.studies.training_steps resnet50 vit_base_patch16_224 --precision amp

PyTorch's side is traced on fake CUDA tensors, see `traced_step`. Traces and graphs stay in
`--cache`. `--record` writes PyTorch's side of RECORDED into a folder, for the quick test.
"""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernels import TrainingStep, sequence_of, training_step
from dippm.model.graph.model_graph import ModelGraph
from training.studies.traced_kernels import TracedPrecision
from training.studies.traced_models import graph_of, step_of
from training.studies.traced_training import Optimizer, TracedStep

CACHE = Path("build/kernel_trace")
PASSES = ("forward", "backward", "optimizer")
WITHIN = 0.05
PRECISIONS: tuple[Precision, ...] = ("amp", "fp32")
RECORDED = (
    "timm:darknet17@256",
    "timm:fasternet_t2@224",
    "timm:gernet_s@224",
    "timm:lcnet_100@224",
    "timm:regnetx_002@224",
    "timm:resnetv2_34@288",
    "timm:test_efficientnet@160",
    "torchvision:squeezenet1_1@224",
    "torchvision:vgg13_bn@224",
    "timm:flexivit_base@240",
    "transformers:electra@256",
    "transformers:gpt2@256",
)
"""Models with raw graphs in `tests/recordings/live_memory`."""


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums of a training step.

    Attributes:
        spec: name of the model.
        batch: samples.
        precision: number format of the run.
        optimizer: name of the optimiser.
        pass_bytes: bytes that the kernels of each of PASSES move.
        pass_kernels: number of kernels of each of PASSES.
        saved_bytes: saved bytes, see `TrainingStep`.
    """

    spec: str
    batch: int
    precision: Precision
    optimizer: Optimizer
    pass_bytes: tuple[float, ...]
    pass_kernels: tuple[float, ...]
    saved_bytes: float


def ours(
    graph: ModelGraph, spec: str, batch: int, precision: Precision, optimizer: Optimizer
) -> StepTotals:
    """Return DIPPM's sums of a step."""
    sequence = sequence_of(graph).at_batch(batch)
    step = training_step(sequence, precision, optimizer=optimizer)
    moved = [k.read_bytes + k.write_bytes + k.weight_bytes for k in step.kernels]
    return _totals(step, moved, (spec, batch, precision, optimizer))


def theirs(
    spec: str, batch: int, precision: Precision, optimizer: Optimizer, cache: Path
) -> StepTotals:
    """Return PyTorch's sums of a step."""
    known = cast(TracedPrecision, precision)
    step = step_of(spec, batch, known, False, optimizer, cache)
    moved = [kernel.read_bytes + kernel.write_bytes for kernel in step.kernels]
    return _totals(step, moved, (spec, batch, precision, optimizer))


def _totals(
    step: TrainingStep | TracedStep,
    moved: Sequence[float],
    of: tuple[str, int, Precision, Optimizer],
) -> StepTotals:
    passes = [kernel.part.partition("_")[0] for kernel in step.kernels]
    launches = [float(kernel.launches) for kernel in step.kernels]

    def summed(values: Iterable[float]) -> tuple[float, ...]:
        pairs = list(zip(passes, values, strict=True))
        return tuple(sum(v for p, v in pairs if p == name) for name in PASSES)

    return StepTotals(*of, summed(moved), summed(launches), float(step.saved_bytes))


def ratios(a: StepTotals, b: StepTotals) -> dict[str, float]:
    """Return the ratios a / b of the compared sums by name."""
    found = {
        f"{name} {what}": x / y if y else 1.0
        for what, left, right in (
            ("bytes", a.pass_bytes, b.pass_bytes),
            ("kernels", a.pass_kernels, b.pass_kernels),
        )
        for name, x, y in zip(PASSES, left, right, strict=True)
    }
    found["bytes"] = sum(a.pass_bytes) / sum(b.pass_bytes)
    found["kernels"] = sum(a.pass_kernels) / sum(b.pass_kernels)
    found["saved"] = a.saved_bytes / b.saved_bytes
    return found


COLUMNS = (
    "bytes",
    "kernels",
    "saved",
    "forward bytes",
    "backward bytes",
    "optimizer bytes",
    "forward kernels",
    "backward kernels",
    "optimizer kernels",
)


def table_of(found: dict[str, dict[str, float]]) -> Table:
    """Return the ratios to PyTorch's sums by model, the worst last."""
    table = Table("model", *COLUMNS, title="ours / PyTorch's")
    for spec, row in sorted(found.items(), key=lambda item: abs(np.log(item[1]["bytes"]))):
        table.add_row(spec, *(f"{row[name]:.3f}" for name in COLUMNS))
    return table


def words(found: dict[str, dict[str, float]]) -> str:
    """Return a sentence on how many models agree."""
    parts = []
    for name in COLUMNS[:3]:
        off = np.array([abs(row[name] - 1) for row in found.values()])
        near = int((off <= WITHIN).sum())
        parts.append(f"{name}: {near} of {len(off)} within {WITHIN:.0%}, worst {off.max():.1%}")
    return "; ".join(parts)


def main(
    models: Annotated[list[str] | None, typer.Argument(help="see kernel_trace")] = None,
    precision: Annotated[str, typer.Option(help="fp32, fp16 or amp")] = "amp",
    optimizer: Annotated[str, typer.Option(help="sgd or adamw")] = "adamw",
    batch: Annotated[int, typer.Option(help="samples")] = 4,
    cache: Annotated[Path, typer.Option(help="folder of traces and graphs")] = CACHE,
    list_of: Annotated[Path | None, typer.Option(help="file with more models")] = None,
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
    record: Annotated[Path | None, typer.Option(help="where the test's recording goes")] = None,
) -> None:
    """Print the ratios to PyTorch's sums."""
    warnings.filterwarnings("ignore")
    console = Console(width=None if Console().is_terminal else 170, highlight=False)
    known, update = cast(Precision, precision), cast(Optimizer, optimizer)
    if record is not None:
        rows = [
            asdict(theirs(spec, batch, p, update, cache)) for spec in RECORDED for p in PRECISIONS
        ]
        document = {"command": shlex.join(sys.orig_argv[1:]), "torch": torch.__version__}
        record.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        head = json.dumps(document)[:-1]
        (record / "steps.json").write_text(f'{head}, "steps": [\n{lines}\n]}}\n', encoding="utf-8")
    found = {}
    for spec in [*(models or []), *(list_of.read_text().split() if list_of else [])]:
        try:
            seen = theirs(spec, batch, known, update, cache)
            found[spec] = ratios(ours(graph_of(spec, cache), spec, batch, known, update), seen)
        except Exception as error:  # one model of a zoo must not stop the others
            text = f"{spec}: {type(error).__name__}: {error}"
            console.print(text[:300], markup=False)
    if found:
        console.print(table_of(found))
        console.print(words(found))
    if results is not None:
        lines = ",\n".join(
            f"  {json.dumps(spec)}: {json.dumps({k: round(v, 4) for k, v in row.items()})}"
            for spec, row in sorted(found.items())
        )
        results.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
