"""The console, and tables for the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import exp
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.show.report.tables import OPERATOR_COLUMNS, Column, TerminalTable

if TYPE_CHECKING:  # a table of runs must not load the frontends
    from dippm.devices import Device, HostMachine
    from dippm.estimate.epoch import Epoch
    from dippm.estimate.module_tree import ModuleCost
    from dippm.estimate.prediction import Prediction
    from dippm.estimate.pretrained.store import CheckpointInfo
    from dippm.measure.selftest import Figure, Report
    from dippm.measure.verification import OperatorVerification
    from dippm.model.graph import ModelGraph
    from dippm.runs.tracking.run_cost import RunCost
    from dippm.show.report.answers import AnswerPart
    from dippm.show.report.health import HealthFinding

PIPE_WIDTH = 10_000
DELIVERABLE, DELIVERABLE_IS = "D3.5", "the report of MAELSTROM that describes DIPPM's first network"
STYLES = {"ok": "green", "absent": "yellow", "broken": "bold red"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Re-raise for the command line, which sets the exit code of a closed pipe."""
        raise


class _TrimmedStream:
    """A stream that strips trailing blanks, with which tables fill their lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r"(?<! ) ++(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(file: TextIO | None = None) -> Console:
    """Return a console of the width of the terminal or of COLUMNS; else lines are not broken.

    Colour is used on terminals; NO_COLOR and FORCE_COLOR are honoured.
    """
    stream = file or sys.stdout
    free = not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    return _Console(
        file=cast(TextIO, _TrimmedStream(stream)) if free else stream,
        width=PIPE_WIDTH if free else None,
        highlight=False,
        emoji=False,
        soft_wrap=free,
    )


def print_text(text: str, file: TextIO | None = None) -> None:
    """Print lines; those too long for the terminal continue below their last column."""
    out = console(file)
    for line in printable(text, keep="\n").split("\n"):
        for part in _fold(line, out.width):
            out.print(part, markup=False)


def _fold(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    starts = [match.end() for match in re.finditer(r"^ +! |^ +|\s{2,}", line)]
    indent = max((start for start in starts if start <= width // 2), default=0)
    return wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        replace_whitespace=False,
        break_on_hyphens=False,
    )


def prediction_parts(
    prediction: Prediction,
    *,
    epoch: Epoch | None = None,
    tree: bool = False,
    depth: int = 3,
    operators: int = 0,
) -> Iterator[AnswerPart]:
    """Yield the values, further tables as requested, and the command that checks them."""
    yield str(prediction)
    if epoch is not None:
        yield f" {epoch}"
    if tree:
        yield tree_table(prediction.tree, depth)
    if operators:
        yield operator_table(prediction, operators)
    yield prediction


def operator_table(prediction: Prediction, count: int) -> TerminalTable:
    """Return the costliest operators."""
    columns = (
        *OPERATOR_COLUMNS,
        Column("GMACs", rank=2),
        Column("MB moved", rank=3),
        Column("output", rank=4),
    )
    costs = sorted(prediction.operators, key=lambda cost: cost.time_ms, reverse=True)[:count]
    nodes = prediction.graph.nodes
    rows = []
    for cost in costs:
        shape = "" if cost.node is None else "×".join(map(str, nodes[cost.node].out_shapes[0]))
        rows.append(
            (
                cost.title,
                cost.path,
                show(cost.time_ms),
                f"{cost.share:.1%}",
                cost.bound,
                show(cost.macs / 1e9) if cost.macs else "",
                show(cost.bytes_moved / 2**20) if cost.bytes_moved else "",
                shape,
            )
        )
    return TerminalTable(columns, rows)


def graph_table(graph: ModelGraph, name: str) -> TerminalTable:
    """Return MACs, parameters and bytes of a graph by operator."""
    columns = (
        Column("operator", folds=True),
        Column("count"),
        Column("GMACs"),
        Column("weights MB", rank=1),
        Column("moved MB", rank=2),
    )
    counts = Counter(node.op for node in graph.nodes)
    rows = []
    for op, count in counts.most_common():
        nodes = [node for node in graph.nodes if node.op == op]
        moved = sum(node.bytes_read + node.bytes_written for node in nodes) / 2**20
        macs = sum(node.macs for node in nodes) / 1e9
        weights = sum(node.param_bytes for node in nodes) / 2**20
        rows.append(
            (
                f"{op} (unknown)" if op in graph.unknown_ops else op,
                str(count),
                show(macs) if macs else "",
                show(weights) if weights else "",
                show(moved),
            )
        )
    return TerminalTable(
        columns, rows, f" {name} · batch {graph.batch}", " " + _graph_caption(graph)
    )


def tree_table(tree: ModuleCost, depth: int) -> TerminalTable:
    """Return the modules of a model with subtotals, without columns that have no values."""
    from dippm.estimate.module_tree import HEADER

    columns = [
        Column(HEADER[0], folds=True),
        Column(HEADER[1], folds=True, rank=1),
        Column(HEADER[2]),
        Column(HEADER[3], rank=2),
        Column(HEADER[4]),
        Column(HEADER[5]),
    ]
    rows = [("  " * level + cells[0], *cells[1:]) for level, cells in tree.rows(depth)]
    if tree.time_ms is None:
        columns, rows = columns[:4], [row[:4] for row in rows]
    return TerminalTable(columns, rows)


def device_table(devices: Sequence[Device]) -> TerminalTable:
    """Return the known GPUs."""
    columns = (
        Column("device", folds=True),
        Column("architecture", rank=5),
        Column("memory MB"),
        Column("GB/s", rank=2),
        Column("fp32", rank=3),
        Column("fp16 TFLOP/s", rank=3),
        Column("W", rank=4),
        Column("MIG", folds=True, rank=1),
    )
    rows = []
    for device in devices:
        rates = [device.peak_tflops.get(precision) for precision in ("fp32", "fp16")]
        rows.append(
            (
                device.name,
                device.architecture,
                f"{device.memory_mb:,}",
                _figure(device.bandwidth_gb_s),
                *map(_figure, rates),
                _figure(device.power_limit_w),
                " ".join(_slices(device)) or "–",
            )
        )
    return TerminalTable(columns, rows)


def host_table(hosts: Sequence[HostMachine], assumed: Sequence[HostMachine]) -> TerminalTable:
    """Return the classes of host machines; defaults are marked."""
    columns = (
        Column("host", folds=True),
        Column("µs a launch"),
        Column("factor between machines", rank=1),
        Column("measured", rank=2),
        Column("what", folds=True),
    )
    rows = [
        (
            f"{host.name} (assumed)" if host in assumed else host.name,
            f"{host.launch_us:g}",
            f"{exp(host.log_sd):.2f}",
            str(host.hosts),
            host.what,
        )
        for host in hosts
    ]
    return TerminalTable(columns, rows)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _slices(device: Device) -> Iterator[str]:
    yield from (profile.name for profile in device.mig_profiles)
    yield from (f"({name})" for name in device.unlisted_mig_profiles)


def checkpoint_table(shipped: Sequence[CheckpointInfo]) -> TerminalTable:
    """Return the shipped checkpoints."""
    from dippm.estimate.pretrained import store

    columns = (
        Column("checkpoint", folds=True),
        Column("version"),
        Column("kind"),
        Column("what", folds=True),
    )
    rows = [
        (
            f"{info.name} (default)" if info.name == store.DEFAULT else info.name,
            info.version,
            info.kind,
            info.summary,
        )
        for info in shipped
    ]
    is_named = any(DELIVERABLE in info.summary for info in shipped)
    return TerminalTable(
        columns, rows, caption=f" {DELIVERABLE}: {DELIVERABLE_IS}" if is_named else ""
    )


def findings_table(findings: Sequence[HealthFinding]) -> TerminalTable:
    """Return the findings of `dippm doctor`; those with the same reason share a row."""
    columns = (Column("what", folds=True), Column("state"), Column("detail", folds=True))
    rows: list[tuple[str, Text, str]] = []
    for (state, detail), group in groupby(findings, lambda f: (f.state, f.detail)):
        what = ", ".join(finding.what for finding in group)
        rows.append((what, Text(state, STYLES[state]), detail.removeprefix("absent: ")))
    count = Counter(finding.state for finding in findings)
    absent = f", {count['absent']} absent, which is allowed" if count["absent"] else ""
    caption = f" {count['ok']} ok{absent}, {count['broken'] or 'nothing'} broken"
    return TerminalTable(columns, rows, caption=caption)


def _graph_caption(graph: ModelGraph) -> str:
    unknown = ", ".join(f"{name} ×{count}" for name, count in graph.unknown_ops.items())
    sums = f"{show(graph.macs / 1e9)} GMACs, {show(graph.param_bytes / 2**20)} MB of weights"
    return f"{len(graph.nodes)} operators, {sums}; unknown: {unknown or 'none'}"


CHECK_COLUMNS = (
    Column("operator", folds=True),
    Column("module", folds=True),
    Column("measured ms"),
    Column("predicted ms"),
    Column("error"),
    Column("kernels", rank=1),
)


def operator_check_table(operators: OperatorVerification, count: int) -> TerminalTable:
    """Return the slowest operators with predicted and measured times."""
    rows = [
        (
            check.op or "(no operator)",
            check.path,
            "" if check.measured_ms is None else show(check.measured_ms),
            "" if check.predicted_ms is None else show(check.predicted_ms),
            "" if check.error is None else f"{check.error:+.0%}",
            str(check.kernels) if check.kernels else "",
        )
        for check in operators.checks[:count]
    ]
    return TerminalTable(CHECK_COLUMNS, rows)


OTHER_TOOLS = (
    ("UMLAUT, CPU and memory", "–", "0.44", "1.8", "305", "1.5–1.7 CPU-s"),
    ("codecarbon", "0.16", "0.75", "–", "80", "1.6 s"),
    ("MLflow system metrics", "1.0", "7.9", "–", "226", "2.2–2.6 CPU-s"),
    ("radT, top and free", "5.7 CPU-s a run", "–", "–", "≈ 330", "16.5 s"),
    ("perun", "5.1 CPU-s a run", "–", "–", "≈ 88", "6.9 s"),
)
"""Overhead of other tools in November 2026 next to a sleep of 10 s: % of a core at 1, 10 and 100
Hz, MiB, and start-up time; measured on two shared cores without a GPU."""
VERDICT_STYLES = {"ok": "green", "undecided": "yellow", "above": "bold red"}


def overhead_table(report: Report) -> Table:
    """Return measured values with their limits."""
    table = _figures_table(report.figures)
    table.title = "what sampling costs · " + ", ".join(report.plan.sources)
    table.caption = _overhead_caption(report)
    return table


def run_cost_table(cost: RunCost) -> Table:
    """Return the cost of tracking a command with its limits."""
    table = _figures_table(cost.figures)
    table.title = f"what tracking a command of {cost.seconds:g} s costs"
    table.caption = f"load {cost.load:.1f} before; radT 0.2.30: 16.5 s and 330 MB beside 15 s"
    return table


def _figures_table(figures: Iterable[Figure]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    for column in ("what", "mean", "95 % interval", "unit", "n", "target", ""):
        table.add_column(column, overflow="fold")
    for figure in figures:
        style = VERDICT_STYLES.get(figure.verdict, "")
        target = "" if figure.target is None else f"≤ {figure.target:g}"
        table.add_row(
            figure.what,
            f"{figure.mean:.2f}",
            _interval(figure),
            figure.unit,
            str(figure.count),
            target,
            f"[{style}]{figure.verdict}[/]" if style else "",
        )
    return table


def others_table(report: Report) -> Table:
    """Return DIPPM's values above those of other tools, which were measured elsewhere."""
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = "beside other tools"
    for column in ("", "1 Hz, % of a core", "10 Hz", "100 Hz", "RSS, MiB", "start"):
        table.add_column(column, overflow="fold")
    found = {figure.what: figure.mean for figure in report.figures}
    start_ms = found["sampler CPU to its first reading"]
    table.add_row(
        "DIPPM, here and now",
        *(_share(found.get(f"sampler CPU at {hz} Hz")) for hz in (1, 10, 100)),
        f"{found['sampler resident memory']:.0f}",
        f"{start_ms / 1e3:.2f} CPU-s",
        style="bold",
    )
    for row in OTHER_TOOLS:
        table.add_row(*row)
    table.caption = "the others: two shared cores without a GPU, a sleep of 10 s, November 2026"
    return table


def _share(percent: float | None) -> str:
    return "–" if percent is None else f"{percent:.2f}"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "–"
    return f"{figure.low:.2f} – {figure.high:.2f}"


def _overhead_caption(report: Report) -> str:
    cores, load = report.machine["cores"], report.machine["load"]
    text = (
        f"{cores} cores, load {load:.1f} before; a slow-down is above its target when its whole "
        "interval is, and undecided while the interval holds it (--repeats)"
    )
    if report.repeats < report.plan.repeats:
        text += (
            f"; {report.repeats} of {report.plan.repeats} repetitions: no more fitted into "
            f"{report.plan.limit_s / 60:g} min (--minutes)"
        )
    if load > cores / 2:
        text += "; other work disturbs these figures, repeat them on a quiet machine"
    return text
