"""Our list of kernels compared with the launches of eager PyTorch, by model.

    python -m training.studies.kernel_trace resnet50 torchvision:vit_b_16 transformers:bert --list

PyTorch's side: the model runs on fake CUDA tensors under real autocast, and a dispatch mode records
each call that launches something (`traced`). No GPU and no weights are needed. Traces and
graphs stay in `--cache`, so that another run of the comparison repeats neither tracing nor
conversion; delete a file to renew it. `--list-of` names a file of models, one per line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, cast

import typer

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import QUANTITIES, SETTINGS, KernelTable
from dippm.model.graph.model_graph import ModelGraph
from training.studies import options
from training.studies.comparison import Comparison
from training.studies.kernel_lines import Line, sizes_of
from training.studies.traced_kernels import TracedKernel, TracedPrecision, traced
from training.studies.traced_models import graph_of, step_of, trace_of
from training.studies.traced_training import Optimizer

__all__ = ["TracedKernel", "main", "traced"]

CACHE = Path("build/kernel_trace")
KINDS = (*KERNEL_CLASSES, "cast (weights)")
PASSES = ("forward", "backward", "optimizer")
STEP_KINDS = tuple(f"{part}: {kind}" for part in PASSES for kind in KINDS)
TITLE = "Our list of kernels against what eager PyTorch launches"
NOTE = """`python -m training.studies.kernel_trace --list-of MODELS --summary --graphs GRAPHS \\
--results training/studies/results/kernel_trace`, MODELS being kernel_models.txt beside this file.

Autocast to float16, batch 4, nchw, eager, fused attention. PyTorch's side is traced on fake CUDA
tensors (torch 2.13). Models of transformers are the default configuration of their type with two
layers."""


def our_lines(
    graph: ModelGraph,
    batch: int,
    precision: Precision,
    channels_last: bool,
    optimizer: Optimizer | None = None,
) -> list[Line]:
    """Return DIPPM's kernels in execution order, of inference or of a step with an optimiser."""
    if optimizer is None:
        table = KernelTable.of(graph, precision, channels_last=channels_last)
    else:
        table = KernelTable.of_training(graph, precision, optimizer, channels_last=channels_last)
    columns = dict(zip(QUANTITIES, table.quantities(batch).T, strict=True))
    kinds, launches = list(KERNEL_CLASSES), SETTINGS.index("launches")
    at_batch = graph.at_batch(batch) if graph.batch_is_symbolic else graph
    lines = []
    for i, position in enumerate(table.node):
        node, weights = at_batch.nodes[position], columns["weight_bytes"][i]
        kind = kinds[table.kind[i]]
        kind = "cast (weights)" if kind == "cast" and weights else kind
        part = PARTS[table.part[i]].partition("_")[0]
        lines.append(
            Line(
                kind if optimizer is None else f"{part}: {kind}",
                float(table.settings[i, launches]),
                float(columns["read_bytes"][i] + weights),
                float(columns["write_bytes"][i]),
                f"{node.op} {sizes_of(node.out_shapes[0] if node.out_shapes else ())} {node.path}",
            )
        )
    return lines


def traced_lines(kernels: Iterable[TracedKernel], *, in_parts: bool = False) -> list[Line]:
    """Return PyTorch's calls in execution order; with `in_parts` kinds name the pass of a step."""
    return [
        Line(
            (f"{kernel.part}: " if in_parts else "")
            + ("cast (weights)" if kernel.kind == "cast" and kernel.weight_bytes else kernel.kind),
            float(kernel.launches),
            kernel.read_bytes,
            kernel.write_bytes,
            f"{kernel.op} {sizes_of(kernel.shape)} {kernel.path}",
        )
        for kernel in kernels
    ]


def main(
    models: options.Models = None,
    precision: options.Precision = "amp",
    batch: options.Batch = 4,
    channels_last: options.ChannelsLast = False,
    cache: Annotated[Path, typer.Option(help="folder of traces and graphs")] = CACHE,
    graphs: options.Graphs = None,
    listed: options.Listed = False,
    list_of: options.ListOf = None,
    results: options.Results = None,
    summary: options.Summary = False,
    phase: Annotated[str, typer.Option(help="inference, or train: a step")] = "inference",
    optimizer: Annotated[str, typer.Option(help="of a step: sgd or adamw")] = "sgd",
) -> None:
    """Print kernels and bytes by class, ours and PyTorch's."""
    warnings.filterwarnings("ignore")
    known, order = cast(TracedPrecision, precision), channels_last
    update = cast(Optimizer, optimizer) if phase == "train" else None
    kinds = KINDS if update is None else STEP_KINDS
    models = [*(models or []), *(list_of.read_text().split() if list_of else [])]
    comparison = Comparison(kinds, "class", "traced", listed=listed, summary=summary)
    calls: dict[str, list[Line]] = {}
    for spec in models:  # traces take seconds, conversions longer
        with comparison.reported(spec):
            if update is None:
                calls[spec] = traced_lines(trace_of(spec, batch, known, order, cache))
            else:
                step = step_of(spec, batch, known, order, update, cache)
                calls[spec] = traced_lines(step.kernels, in_parts=True)
    for spec, theirs in calls.items():
        with comparison.reported(spec):
            ours = our_lines(graph_of(spec, cache, graphs), batch, known, order, update)
            comparison.add(spec, ours, theirs)
    comparison.close(results, TITLE, NOTE)


if __name__ == "__main__":
    typer.run(main)
