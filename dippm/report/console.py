"""Tables for the terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dippm.devices import Device
from dippm.graph import ModelGraph
from dippm.prediction import Prediction, show
from dippm.pretrained import store
from dippm.pretrained.store import CheckpointInfo
from dippm.printable import printable
from dippm.report.health import Finding

PIPE_WIDTH = 200
STYLES = {"ok": "green", "absent": "yellow", "broken": "bold red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which knows the exit code of a reader that went away."""
        raise


def console(file: TextIO | None = None) -> Console:
    """Return a console: colour only on a terminal, and lines unbroken in a pipe."""
    stream = file or sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return _Console(
        file=stream, width=width, highlight=False, emoji=False, soft_wrap=not stream.isatty()
    )


def shown(text: str, style: str = "") -> Text:
    """Return text from outside as it may go into a table: no markup, nothing hidden."""
    return Text(printable(text), style)


def operator_table(prediction: Prediction, count: int) -> Table:
    """Return the costliest operators."""
    table = _table("operator", "time ms", "share", "bound", "GMACs", "MB moved", "output")
    costs = sorted(prediction.operators, key=lambda cost: cost.time_ms, reverse=True)[:count]
    nodes = prediction.graph.nodes
    for cost in costs:
        shape = "" if cost.node is None else "×".join(map(str, nodes[cost.node].out_shapes[0]))
        table.add_row(
            shown(cost.op),
            show(cost.time_ms),
            f"{cost.share:.1%}",
            cost.bound,
            show(cost.macs / 1e9) if cost.macs else "",
            show(cost.bytes_moved / 2**20) if cost.bytes_moved else "",
            shape,
        )
    return table


def graph_table(graph: ModelGraph, name: str) -> Table:
    """Return MACs, parameters and bytes of a graph by operator."""
    table = _table("operator", "count", "GMACs", "weights MB", "moved MB")
    table.title = shown(f"{name} · batch {graph.batch}", "table.title")
    table.caption = shown(_graph_caption(graph), "table.caption")
    counts = Counter(node.op for node in graph.nodes)
    for op, count in counts.most_common():
        nodes = [node for node in graph.nodes if node.op == op]
        moved = sum(node.bytes_read + node.bytes_written for node in nodes) / 2**20
        macs = sum(node.macs for node in nodes) / 1e9
        weights = sum(node.param_bytes for node in nodes) / 2**20
        marked = f"{op} (unknown)" if op in graph.unknown_ops else op
        table.add_row(
            shown(marked),
            str(count),
            show(macs) if macs else "",
            show(weights) if weights else "",
            show(moved),
        )
    return table


def device_table(devices: Sequence[Device]) -> Table:
    """Return the known GPUs."""
    table = _table(
        "device", "architecture", "memory MB", "GB/s", "fp32", "fp16 TFLOP/s", "W", "MIG"
    )
    for device in devices:
        rates = [device.peak_tflops.get(precision) for precision in ("fp32", "fp16")]
        table.add_row(
            device.name,
            device.architecture,
            f"{device.memory_mb:,}",
            f"{device.bandwidth_gb_s:g}",
            *(f"{rate:g}" if rate else "–" for rate in rates),
            f"{device.power_limit_w:g}",
            " ".join(profile.name for profile in device.mig_profiles) or "–",
        )
    return table


def checkpoint_table(shipped: Sequence[CheckpointInfo]) -> Table:
    """Return the shipped checkpoints."""
    table = _table("checkpoint", "version", "kind", "what")
    for info in shipped:
        name = f"{info.name} (default)" if info.name == store.DEFAULT else info.name
        table.add_row(*map(shown, (name, info.version, info.kind, info.summary)))
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return what `dippm doctor` found."""
    table = _table("what", "state", "detail")
    for finding in findings:
        state = shown(finding.state, STYLES[finding.state])
        table.add_row(shown(finding.what), state, shown(finding.detail))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _graph_caption(graph: ModelGraph) -> str:
    unknown = ", ".join(f"{name} ×{count}" for name, count in graph.unknown_ops.items())
    sums = f"{show(graph.macs / 1e9)} GMACs, {show(graph.param_bytes / 2**20)} MB of weights"
    return f"{len(graph.nodes)} operators, {sums}; unknown: {unknown or 'none'}"
