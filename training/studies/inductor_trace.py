"""Our compiled kernels compared with those that torch.compile schedules for a GPU, by model.

    python -m training.studies.inductor_trace resnet18 torchvision:swin_t transformers:bert --list

Inductor's side: the model is traced, lowered, scheduled and fused as for a CUDA device, on fake
tensors (`compiled`), up to where code would be generated. Schedules and graphs stay in `--cache`.
"""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernels import launched
from dippm.model.graph.model_graph import ModelGraph
from training.studies import options
from training.studies.comparison import Comparison
from training.studies.inductor_kernels import CompiledForward, CompiledKernel, compiled
from training.studies.kernel_lines import Line, sizes_of
from training.studies.traced_kernels import TracedPrecision
from training.studies.traced_models import graph_of, module_of, stem_of, write_compressed

CACHE = Path("build/kernel_trace")
KINDS = (
    "convolution",
    "product",
    "attention",
    "library",
    "reduction",
    "pointwise",
    "pointwise (weights)",
)
TITLE = "Our compiled kernels against what inductor schedules"
NOTE = """`python -m training.studies.inductor_trace --list-of MODELS --summary --graphs GRAPHS \\
--results training/studies/results/inductor_trace`, MODELS being inductor_models.txt beside this
file.

Autocast to float16, batch 4, nchw, mode compiled, fused attention. Inductor's side is scheduled for
a CUDA device with the properties of an A100 on fake tensors (torch 2.13, default options, no
padding of products). "library" is a call of ATen that inductor does not generate;
"pointwise (weights)" are kernels that read parameters alone, nearly all of them casts."""
_REDUCES = ("layer_norm", "group_norm", "softmax", "reduction")


def our_lines(graph: ModelGraph, precision: Precision, channels_last: bool) -> list[Line]:
    """Return DIPPM's compiled kernels in execution order; the graph is at the batch in question."""
    kernels = launched(graph, precision, "compiled", channels_last=channels_last)
    return [_our_line(kernel, graph) for kernel in kernels]


def _our_line(kernel: Kernel, graph: ModelGraph) -> Line:
    node = graph.nodes[kernel.node]
    kind = _our_kind(kernel)
    if kind == "pointwise" and kernel.weight_bytes and not kernel.read_bytes:
        kind = "pointwise (weights)"
    shape = sizes_of(node.out_shapes[0] if node.out_shapes else ())
    return Line(
        kind,
        float(kernel.launches),
        kernel.read_bytes + kernel.weight_bytes,
        kernel.write_bytes,
        f"{kernel.kind} {node.op} {shape} {node.path}",
    )


def _our_kind(kernel: Kernel) -> str:
    if kernel.kind.startswith("conv_"):
        return "convolution"
    if kernel.kind in ("gemm", "batched_gemm"):
        return "product"
    if kernel.kind in ("attention",):
        return "attention"
    if kernel.kind in ("recurrent", "other"):
        return "library"
    assert kernel.kind in KERNEL_CLASSES
    return "reduction" if kernel.kind in _REDUCES else "pointwise"


def their_lines(kernels: Iterable[CompiledKernel]) -> list[Line]:
    """Return inductor's kernels in execution order."""
    lines = []
    for kernel in kernels:
        static = kernel.weight_bytes == kernel.read_bytes > 0 and kernel.kind == "pointwise"
        shape = sizes_of(kernel.shape)
        text = f"{kernel.members} {shape} {' '.join(kernel.origins)}"
        kind = "pointwise (weights)" if static else kernel.kind
        lines.append(Line(kind, 1.0, kernel.read_bytes, kernel.write_bytes, text))
    return lines


def schedule_of(
    spec: str, batch: int, precision: TracedPrecision, channels_last: bool, cache: Path
) -> CompiledForward:
    """Return inductor's schedule of a model, from the cache if present."""
    order = "nhwc" if channels_last else "nchw"
    path = cache / f"{stem_of(spec)}.{batch}.{precision}.{order}.inductor.json.gz"
    if not path.is_file():
        module, inputs = module_of(spec, batch)
        forward = compiled(module, inputs, precision, channels_last)
        write_compressed(path, json.dumps(asdict(forward)))
    held = json.loads(gzip.decompress(path.read_bytes()))
    kernels = tuple(_kernel(row) for row in held["kernels"])
    return CompiledForward(kernels, held["graphs"], tuple(held["results"]), held["input_bytes"])


def _kernel(row: dict[str, Any]) -> CompiledKernel:
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    lists["held_by"] = tuple((name, holder) for name, holder in row["held_by"])
    return CompiledKernel(**{**row, **lists})


def main(
    models: options.Models = None,
    precision: options.Precision = "amp",
    batch: options.Batch = 4,
    channels_last: options.ChannelsLast = False,
    cache: Annotated[Path, typer.Option(help="folder of schedules and graphs")] = CACHE,
    graphs: options.Graphs = None,
    listed: options.Listed = False,
    list_of: options.ListOf = None,
    results: options.Results = None,
    summary: options.Summary = False,
) -> None:
    """Print kernels and bytes by kind, ours and inductor's."""
    warnings.filterwarnings("ignore")
    known = cast(TracedPrecision, precision)
    comparison = Comparison(KINDS, "kind", "inductor", listed=listed, summary=summary)
    for spec in [*(models or []), *(list_of.read_text().split() if list_of else [])]:
        with comparison.reported(spec):
            theirs = their_lines(schedule_of(spec, batch, known, channels_last, cache).kernels)
            graph = graph_of(spec, cache, graphs).at_batch(batch)
            comparison.add(spec, our_lines(graph, known, channels_last), theirs)
    comparison.close(results, TITLE, NOTE)


if __name__ == "__main__":
    typer.run(main)
