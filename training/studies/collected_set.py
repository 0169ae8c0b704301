"""Errors of the shipped checkpoints on a collected set that they were not trained on.

    python -m dataset.build_collected dataset/data/DEVICE --out JOINED
    python -m training.studies.collected_set dataset/data/DEVICE --joined JOINED [--results FILE]

Each point is predicted by `dippm.predict` with GPU, precision, mode, layout and batch, and with the
default host and context. "bound" follows from the share of kernels in the time of a profiled step:
"GPU" from 85 %, "host" (limited by the processor) below 60 %. A median ratio below one means
predictions that are too small. "host, named" asks the points that the host limits again, with the
launch time of the set's machine: the default one over the median ratio of its inferences.

--operators compares the kernels of each kind of operator as well: those that a profiler saw in
eager inferences limited by the GPU, with what was predicted of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import dippm
from dippm.cli.output import errors_reported
from dippm.estimate.prediction import Prediction
from dippm.measure.collected.kernels import Kernels, read_kernels
from dippm.measure.collected.rows import collected, read_joined
from dippm.measure.kernels.join import join_kernels
from dippm.model.graph import ModelGraph
from dippm.show.report.collected.summary import used_rows
from training.evaluation.metrics import coverage, mean_ape, median_ape

GPU_BOUND, HOST_BOUND = 0.85, 0.6
TARGETS = ("latency_ms", "energy_j", "memory_mb", "power_w")


@dataclass(frozen=True, slots=True)
class Line:
    """Errors of one target on a part of a set.

    Attributes:
        phase: "inference" or "train".
        target: name of the predicted quantity.
        part: "all", the bound of the points, or "host, named".
        n: number of points.
        median_ratio: median of predicted over measured.
        median_ape: median absolute percentage error.
        mape: mean absolute percentage error.
        log_sd: standard deviation of the logarithm of predicted over measured about its median.
        inside: share of measurements inside their 90 % intervals, in percent.
        checkpoint: checkpoint of the predictions.
    """

    phase: str
    target: str
    part: str
    n: int
    median_ratio: float
    median_ape: float
    mape: float
    log_sd: float
    inside: float
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A measured point and its predictions."""

    row: dict[str, Any]
    prediction: Prediction

    @property
    def bound(self) -> str:
        """Limiting part of the point: "GPU", "host" or "both"."""
        share = self.row["kernel_ms"] / (self.row["queued_ms"] or self.row["latency_ms"])
        return "GPU" if share >= GPU_BOUND else "host" if share < HOST_BOUND else "both"


def answers(folder: Path, joined: Path) -> Iterator[Answer]:
    """Yield the answers for all usable points of models with a known graph."""
    found = read_joined(joined)
    rows = used_rows(collected(folder).rows)
    rows = rows[(rows["kind"] == "model") & rows["kernel_ms"].notna()]
    for model, part in rows.groupby("model"):
        graph = found.read_graph(str(model))
        if graph is None:
            continue
        for row in part.to_dict("records"):
            yield _ask({str(name): value for name, value in row.items()}, graph)


def with_host_named(found: Sequence[Answer]) -> Iterator[Answer]:
    """Yield the answers for points that the host limits, given the launch time of its machine."""
    limited = [a for a in found if a.bound == "host" and a.prediction.latency_ms is not None]
    times = [
        answer.prediction.host.launch_us * answer.row["latency_ms"] / answer.prediction.latency_ms
        for answer in limited
        if answer.row["phase"] == "inference" and answer.prediction.host is not None
    ]
    if times:
        host = float(np.median(times))
        yield from (_ask(answer.row, answer.prediction.graph, host=host) for answer in limited)


def _ask(row: dict[str, Any], graph: ModelGraph, **more: Any) -> Answer:
    asked = {name: row[name] for name in ("device", "precision", "mode", "phase")}
    batch, last = int(row["batch"]), bool(row["channels_last"])
    return Answer(row, dippm.predict(graph, batch=batch, channels_last=last, **asked, **more))


def lines(found: Sequence[Answer]) -> Iterator[Line]:
    """Yield the errors by phase and target; those of time also by bound."""
    for phase in dict.fromkeys(answer.row["phase"] for answer in found):
        mine = [answer for answer in found if answer.row["phase"] == phase]
        for target in TARGETS:
            yield from _line(mine, phase, target, "all")
            if target != "memory_mb":
                for bound in ("GPU", "both", "host"):
                    yield from _line([a for a in mine if a.bound == bound], phase, target, bound)


def _line(found: Sequence[Answer], phase: str, target: str, part: str) -> Iterator[Line]:
    pairs = [
        (answer.row[target], getattr(answer.prediction, target), answer.prediction)
        for answer in found
        if answer.row[target] and answer.row[target] > 0  # NaN is not
    ]
    known = [(measured, value, answer) for measured, value, answer in pairs if value is not None]
    if not known:
        return
    measured, predicted = np.array([pair[:2] for pair in known]).T
    log_ratios = np.log(predicted / measured)
    intervals = [answer.intervals[target] for _, _, answer in known]
    inside = coverage(measured, [i.low for i in intervals], [i.high for i in intervals])
    yield Line(
        phase=phase,
        target=target,
        part=part,
        n=len(known),
        median_ratio=round(float(np.median(predicted / measured)), 3),
        median_ape=round(median_ape(measured, predicted), 1),
        mape=round(mean_ape(measured, predicted), 1),
        log_sd=round(float(np.sqrt(np.mean((log_ratios - np.median(log_ratios)) ** 2))), 3),
        inside=round(100 * inside, 1),
        checkpoint=known[0][2].provenance.checkpoint,
    )


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """Kernels of one kind of operator in eager inferences that the GPU limits.

    Attributes:
        op: canonical operator name.
        precision: precision of the points.
        measured_ms, predicted_ms: sums over all points.
        measured_kernels, predicted_kernels: likewise, numbers of kernels.
    """

    op: str
    precision: str
    measured_ms: float
    predicted_ms: float
    measured_kernels: int
    predicted_kernels: int


def operator_lines(found: Sequence[Answer], tables: Kernels) -> Iterator[OperatorLine]:
    """Yield the sums by operator and precision, the largest first.

    Args:
        found: answers; those without a kernel table are passed over.
        tables: kernels by row id.
    """
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for answer in found:
        row, kernels = answer.row, tables.get(answer.row["row_id"], ())
        if (row["mode"], row["phase"], answer.bound) != ("eager", "inference", "GPU"):
            continue
        measured: dict[int | None, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for kernel, owner in zip(
            kernels, join_kernels(kernels, answer.prediction.graph), strict=True
        ):
            measured[owner.node][0] += kernel.ns / 1e6
            measured[owner.node][1] += 1
        for cost in answer.prediction.operators:
            if cost.node in measured:
                ms, count = measured[cost.node]
                more = ms, cost.time_ms, count, cost.kernels
                key = cost.op, row["precision"]
                sums[key] = [a + b for a, b in zip(sums[key], more, strict=True)]
    for (op, precision), (ms, predicted_ms, count, predicted) in sorted(
        sums.items(), key=lambda item: -item[1][0]
    ):
        yield OperatorLine(
            op, precision, round(ms, 3), round(predicted_ms, 3), int(count), int(predicted)
        )


def main(
    folder: Annotated[Path, typer.Argument(help="that the collector wrote")],
    joined: Annotated[Path, typer.Option(help="graphs of its models")],
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
    operators: Annotated[bool, typer.Option(help="kernels by operator as well")] = False,
) -> None:
    """Print the errors of the shipped checkpoints."""
    given = list(answers(folder, joined))
    found = list(lines(given))
    named = list(with_host_named(given))
    for phase in dict.fromkeys(answer.row["phase"] for answer in named):
        mine = [answer for answer in named if answer.row["phase"] == phase]
        found += _line(mine, phase, "latency_ms", "host, named")
    errors = "median ratio", "median APE %", "MAPE %", "log sd", "in %"
    table = Table("phase", "target", "bound", "n", *errors)
    for line in found:
        table.add_row(*map(str, list(asdict(line).values())[:-1]))
    Console().print(table)
    if operators:
        _print_operators(list(operator_lines(given, read_kernels(folder))))
    if results is not None:
        rows = ",\n".join(f" {json.dumps(asdict(line))}" for line in found)
        results.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def _print_operators(found: Sequence[OperatorLine]) -> None:
    heads = ("operator", "precision", "measured ms", "predicted", "ratio", "kernels", "predicted")
    table = Table(*heads)
    for line in found:
        ratio = f"{line.predicted_ms / line.measured_ms:.2f}" if line.measured_ms else "-"
        times = f"{line.measured_ms:.2f}", f"{line.predicted_ms:.2f}", ratio
        counts = line.measured_kernels, line.predicted_kernels
        table.add_row(line.op, line.precision, *times, *map(str, counts))
    Console().print(table)


if __name__ == "__main__":
    typer.run(errors_reported(as_json=False)(main))
