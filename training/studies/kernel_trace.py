"""Our list of kernels beside what eager PyTorch launches, model by model.

    python -m training.studies.kernel_trace resnet50 torchvision:vit_b_16 transformers:bert --list

PyTorch's side: the model runs on fake CUDA tensors under real autocast, and a dispatch mode writes
down each call that launches something (`traced`). No GPU and no weights are needed. One call is one
kernel here, also where it launches several. Traces and graphs stay in `--cache`, so that another
run of the comparison needs neither torch's nor the converter's time; delete a file to renew it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from dippm.conditions import Precision
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernel_table import QUANTITIES, SETTINGS, KernelTable
from dippm.graph.model_graph import ModelGraph
from training.studies.traced_kernels import TracedKernel, TracedPrecision, traced
from training.studies.traced_models import graph_of, trace_of

__all__ = ["TracedKernel", "main", "traced"]

MATTERS, OFF = 0.02, 0.2
"""A class matters in a model from this share of its bytes, and is off beyond this ratio."""
CACHE = Path("build/kernel_trace")


@dataclass(frozen=True, slots=True)
class Line:
    """A kernel of either list.

    Attributes:
        kind: its class; casts of parameters are "cast (weights)".
        launches: kernels.
        read_bytes, write_bytes: weights included.
        text: what else to show.
    """

    kind: str
    launches: float
    read_bytes: float
    write_bytes: float
    text: str

    @property
    def bytes(self) -> float:
        """Bytes moved."""
        return self.read_bytes + self.write_bytes


def our_lines(
    graph: ModelGraph, batch: int, precision: Precision, channels_last: bool
) -> list[Line]:
    """Return DIPPM's kernels in execution order."""
    table = KernelTable.of(graph, precision, channels_last=channels_last)
    columns = dict(zip(QUANTITIES, table.quantities(batch).T, strict=True))
    kinds, launches = list(KERNEL_CLASSES), SETTINGS.index("launches")
    at_batch = graph.at_batch(batch) if graph.batch_is_symbolic else graph
    lines = []
    for i, position in enumerate(table.node):
        node, weights = at_batch.nodes[position], columns["weight_bytes"][i]
        kind = kinds[table.kind[i]]
        lines.append(
            Line(
                "cast (weights)" if kind == "cast" and weights else kind,
                float(table.settings[i, launches]),
                float(columns["read_bytes"][i] + weights),
                float(columns["write_bytes"][i]),
                f"{node.op} {_sizes(node.out_shapes[0] if node.out_shapes else ())} {node.path}",
            )
        )
    return lines


def traced_lines(kernels: Iterable[TracedKernel]) -> list[Line]:
    """Return PyTorch's calls in execution order."""
    return [
        Line(
            "cast (weights)" if kernel.kind == "cast" and kernel.weight_bytes else kernel.kind,
            1.0,
            kernel.read_bytes,
            kernel.write_bytes,
            f"{kernel.op} {_sizes(kernel.shape)} {kernel.path}",
        )
        for kernel in kernels
    ]


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


Totals = Mapping[str, tuple[float, float]]


def totals(lines: Iterable[Line]) -> Totals:
    """Return kernels and bytes by class."""
    sums: dict[str, tuple[float, float]] = {}
    for line in lines:
        count, moved = sums.get(line.kind, (0.0, 0.0))
        sums[line.kind] = count + line.launches, moved + line.bytes
    return sums


def by_class(title: str, pairs: list[tuple[Totals, Totals]]) -> Table:
    """Return kernels and bytes by class, ours beside PyTorch's, summed over models."""
    table = Table("class", "ours", "traced", "MB ours", "MB traced", "ratio", "off", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    everything = (
        _summed([sum_all(ours) for ours, _ in pairs]),
        _summed([sum_all(theirs) for _, theirs in pairs]),
    )
    kinds = [
        k for k in (*KERNEL_CLASSES, "cast (weights)") if any(k in a or k in b for a, b in pairs)
    ]
    for kind in kinds:
        ours = _summed([a.get(kind, (0.0, 0.0)) for a, _ in pairs])
        theirs = _summed([b.get(kind, (0.0, 0.0)) for _, b in pairs])
        table.add_row(kind, *_cells(ours, theirs), str(sum(_off(kind, *pair) for pair in pairs)))
    table.add_section()
    table.add_row("all", *_cells(*everything), "")
    return table


def sum_all(sums: Totals) -> tuple[float, float]:
    """Return kernels and bytes of all classes."""
    return _summed(list(sums.values()))


def _summed(values: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(v[0] for v in values), sum(v[1] for v in values)


def _cells(ours: tuple[float, float], theirs: tuple[float, float]) -> list[str]:
    ratio = f"{ours[1] / theirs[1]:.2f}" if theirs[1] else "–"
    moved = [f"{value / 1e6:.1f}" for value in (ours[1], theirs[1])]
    return [f"{ours[0]:.0f}", f"{theirs[0]:.0f}", *moved, ratio]


def _off(kind: str, ours: Totals, theirs: Totals) -> bool:
    a, b = (side.get(kind, (0.0, 0.0))[1] for side in (ours, theirs))
    return max(a, b) > MATTERS * sum_all(theirs)[1] and abs(np.log((a + 1) / (b + 1))) > OFF


def side_by_side(ours: list[Line], theirs: list[Line]) -> list[str]:
    """Return both lists in execution order, classes aligned as far as they agree."""
    from difflib import SequenceMatcher

    rows = []
    matcher = SequenceMatcher(
        None, [a.kind for a in ours], [b.kind for b in theirs], autojunk=False
    )
    for _, a0, a1, b0, b1 in matcher.get_opcodes():
        for k in range(max(a1 - a0, b1 - b0)):
            a = ours[a0 + k] if a0 + k < a1 else None
            b = theirs[b0 + k] if b0 + k < b1 else None
            same = a and b and a.kind == b.kind
            near = same and abs(a.bytes - b.bytes) <= 0.05 * b.bytes  # type: ignore[union-attr]
            mark = " " if near else ("~" if same else "!")
            rows.append(f"{mark} {_shown(a):<78} | {_shown(b)}")
    return rows


def _shown(line: Line | None) -> str:
    if line is None:
        return ""
    sizes = f"{line.read_bytes / 1e6:9.3f} {line.write_bytes / 1e6:9.3f}"
    return f"{line.kind[:14]:<14} {sizes} {line.text}"[:78]


def main(
    models: Annotated[
        list[str], typer.Argument(help="resnet50, torchvision:..., transformers:...")
    ],
    precision: Annotated[str, typer.Option(help="fp32, fp16 or amp")] = "amp",
    batch: Annotated[int, typer.Option(help="samples")] = 4,
    channels_last: Annotated[bool, typer.Option(help="images are held so")] = False,
    cache: Annotated[Path, typer.Option(help="folder of traces and graphs")] = CACHE,
    graphs: Annotated[
        Path | None, typer.Option(help="of dataset.raw_graphs, to take graphs from")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="both lists side by side")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="no table for each model")] = False,
) -> None:
    """Print kernels and bytes by class, ours beside PyTorch's."""
    warnings.filterwarnings("ignore")
    console = Console(width=None if Console().is_terminal else 170, highlight=False)
    known, order = cast(TracedPrecision, precision), channels_last
    calls: dict[str, list[Line]] = {}
    found: dict[str, tuple[Totals, Totals]] = {}
    for spec in models:  # traces take seconds, conversions longer
        with _reported(console, spec):
            calls[spec] = traced_lines(trace_of(spec, batch, known, order, cache))
    for spec, theirs in calls.items():
        with _reported(console, spec):
            ours = our_lines(graph_of(spec, cache, graphs), batch, known, order)
            found[spec] = totals(ours), totals(theirs)
            if listed:
                text = "\n".join(side_by_side(ours, theirs))
                console.print(text, markup=False, soft_wrap=True)
            if not summary:
                console.print(by_class(spec, [found[spec]]))
    if len(found) > 1:
        console.print(by_model(found))
        console.print(by_class(f"{len(found)} models", list(found.values())))


@contextlib.contextmanager
def _reported(console: Console, spec: str) -> Iterator[None]:
    """Say what went wrong with a model; one of a zoo must not stop the others."""
    try:
        yield
    except Exception as error:
        console.print(f"{spec}: {type(error).__name__}: {error}"[:400], markup=False)


def by_model(found: Mapping[str, tuple[Totals, Totals]]) -> Table:
    """Return the totals of each model, the worst last."""
    table = Table("model", "ours", "traced", "MB ours", "MB traced", "ratio", "what differs most")

    def distance(spec: str) -> float:
        ours, theirs = found[spec]
        return abs(float(np.log(sum_all(ours)[1] / sum_all(theirs)[1])))

    for spec in sorted(found, key=distance):
        ours, theirs = found[spec]
        total = sum_all(theirs)[1]
        gaps = {
            kind: (ours.get(kind, (0, 0.0))[1] - theirs.get(kind, (0, 0.0))[1]) / total
            for kind in {**ours, **theirs}
        }
        worst = sorted(gaps, key=lambda kind: -abs(gaps[kind]))[:3]
        text = ", ".join(f"{kind} {gaps[kind]:+.0%}" for kind in worst if abs(gaps[kind]) > 0.005)
        table.add_row(spec, *_cells(sum_all(ours), sum_all(theirs)), text)
    return table


if __name__ == "__main__":
    typer.run(main)
