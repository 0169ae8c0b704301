"""Fits the memory model: a context for each installation, then the classes of software.

The reserved part follows from the graph, nothing of it is fitted; how far it is off is measured on
rows where it is most of the memory. Each installation (a machine with its driver and libraries) has
a context of its own; what a multiprocessor needs and the library of convolutions they share. A
class of software has the mean of its installations. How far they are from the class that an answer
assumes is the spread that intervals and bounds have.

Errors are reported of models left out (of a set of our own a fifth of its architectures), which
have the context of their installation, and of laboratories left out wholly: the protocol L, for
which nothing that they measured is known.

    python -m training.hybrid.fit.memory --data ../shared/data --graphs build/graphs
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.join.graph_store import GraphStore
from dataset.measured.location import DataNotFoundError
from dippm.estimate.conditions import SOFTWARE_CLASSES
from dippm.estimate.models.memory import AskedContext, MemoryGpu, MemoryModel
from training.hybrid.rows.absent_sources import tell_absent
from training.hybrid.rows.collected_memory import collected_memory
from training.hybrid.rows.collected_rows import CollectedSet
from training.hybrid.rows.context_samples import (
    DRIVER_RESERVES_MB,
    ContextSample,
    context_samples,
)
from training.hybrid.rows.memory_samples import UNUSED, MemorySample, memory_samples

Floats = NDArray[np.float64]
DEFAULT = "cuda-11"
"""Class that an answer assumes: its context is the largest, so its bound is the safe one."""
START = np.log([4.0, 200.0])
"""Of the multiprocessors' share and the library of convolutions, in MiB. A multiprocessor holds
2,048 threads, and 2 KiB of local memory for each are 4 MiB."""
START_CONTEXT_MB = 1000.0
PRIOR_WEIGHT = 0.01
"""Of these starts, which hold where no table has slices, or convolutions beside other models."""
MOSTLY_RESERVED = 0.5
"""Share of the memory from which on a row says how far the reserved part is off."""
UNTOLD_LOG_ERROR, LEAST_LOG_ERROR = 0.13, 0.05
"""Error of the reserved part if no such row is at hand, and the least: cuDNN's workspaces alone are
not known better."""
Z90, Z99 = 1.645, 2.326


@dataclass(frozen=True, slots=True)
class ContextFit:
    """What is fitted of contexts.

    Attributes:
        per_sm: context of a multiprocessor in MiB.
        convolution_mb: library of convolutions.
        installations: rest of the context by installation.
    """

    per_sm: float
    convolution_mb: float
    installations: Mapping[str, float]

    def context_mb(self, row: MemorySample) -> float:
        """Return the context of a row of a known installation."""
        return self.installations[row.source] + self._rest_mb(row.sm_count, row.usage.convolves)

    def _rest_mb(self, sm_count: int, convolves: bool) -> float:
        return self.per_sm * sm_count + (self.convolution_mb if convolves else 0.0)


def fit_contexts(rows: Sequence[MemorySample]) -> ContextFit:
    """Fit what rows say of contexts; large batches and their outliers weigh little.

    A set of our own weighs as much as other people's tables together, however many rows it has.
    """
    names = sorted({row.source for row in rows})
    place = np.array([names.index(row.source) for row in rows])
    labels = np.log([row.memory_mb for row in rows])
    reserved = np.array([row.usage.reserved_mb for row in rows])
    multiprocessors = np.array([row.sm_count for row in rows])
    convolves = np.array([row.usage.convolves for row in rows])
    weights = _weights(rows)

    def residual(p: Floats) -> Floats:
        shared, each = np.exp(p[:2]), np.exp(p[2:])
        context = each[place] + shared[0] * multiprocessors + shared[1] * convolves
        off = weights * (np.log(context + reserved) - labels)
        return np.concatenate([off, PRIOR_WEIGHT * (p[:2] - START)])

    start = np.concatenate([START, np.full(len(names), np.log(START_CONTEXT_MB))])
    found = np.exp(least_squares(residual, start, loss="soft_l1", f_scale=0.01).x)
    return ContextFit(
        float(found[0]), float(found[1]), dict(zip(names, found[2:].tolist(), strict=True))
    )


def _weights(rows: Sequence[MemorySample]) -> Floats:
    sizes = Counter(row.source for row in rows if row.part)
    others = sum(not row.part for row in rows)
    return np.array(
        [np.sqrt(others / sizes[row.source]) if row.part and others else 1.0 for row in rows]
    )


def fit_model(rows: Sequence[MemorySample], contexts: Sequence[ContextSample] = ()) -> MemoryModel:
    """Fit the whole model on all that is given; without contexts of a class it has none."""
    fitted = fit_contexts(rows)
    software = {row.source: row.software for row in rows}
    by_class: dict[str, list[float]] = {}
    counted: list[float] = []
    of_ours = {row.source for row in rows if row.part}
    for name, base_mb in fitted.installations.items():
        if name not in of_ours or len(of_ours) == len(software):
            counted.append(base_mb)  # several sets of ours are one installation, and not unknown
        # Nobody wrote down the software of tables of 2022: it is that of their time.
        known = software[name] or DEFAULT
        ours = DRIVER_RESERVES_MB if name == "optimum_benchmark" else 0.0
        by_class.setdefault(known, []).append(base_mb - ours)
    for sample in contexts:
        base_mb = sample.counted_mb - fitted.per_sm * sample.sm_count
        if sample.whole_model:
            counted.append(base_mb)
        by_class.setdefault(sample.software, []).append(base_mb - sample.reserved_by_driver_mb)
    means = {name: max(0.0, float(np.mean(found))) for name, found in by_class.items()}
    default_mb = means.get(DEFAULT, float(np.mean(counted)))
    means = {DEFAULT: default_mb} | means
    squares = sum(float(np.var(found)) * len(found) for found in by_class.values())
    free = max(1, sum(map(len, by_class.values())) - len(by_class))
    unknown = np.array(counted) - default_mb
    return MemoryModel(
        context_mb=default_mb,
        context_mb_per_sm=fitted.per_sm,
        convolution_mb=fitted.convolution_mb,
        log_error=reserved_error(rows, fitted),
        software={name: means[name] for name in SOFTWARE_CLASSES if name in means},
        default=DEFAULT,
        class_sd_mb=float(np.sqrt(squares / free)),
        unknown_sd_mb=float(np.sqrt((unknown**2).sum() / max(1, len(unknown) - 1))),
    )


def reserved_error(rows: Sequence[MemorySample], fitted: ContextFit) -> float:
    """Return the log standard deviation of the reserved part, where it is most of the memory."""
    reserved = np.array([row.usage.reserved_mb for row in rows])
    measured = np.array([row.memory_mb - fitted.context_mb(row) for row in rows])
    labels = np.array([row.memory_mb for row in rows])
    forward = np.array([row.usage.kept_bytes == 0 for row in rows])
    decisive = forward & (reserved >= MOSTLY_RESERVED * labels) & (measured > 0)
    if not decisive.any():
        return UNTOLD_LOG_ERROR
    return max(LEAST_LOG_ERROR, log_spread(np.log(reserved[decisive] / measured[decisive])))


def fit_memory(
    data: Path, graph_folder: Path, collected: Sequence[CollectedSet] = ()
) -> tuple[MemoryModel, dict[str, object]]:
    """Fit on everything; report and keep the errors of models and of laboratories left out."""
    graphs = GraphStore(graph_folder)
    ours = [sample for found in collected for sample in collected_memory(found, graphs)]
    return evaluate([*memory_samples(data, graphs), *ours], context_samples(data))


def evaluate(
    rows: Sequence[MemorySample], contexts: Sequence[ContextSample] = ()
) -> tuple[MemoryModel, dict[str, object]]:
    """Return the model fitted on all samples, and the errors of what was left out.

    Raises:
        DataNotFoundError: if there is no sample.
    """
    if not rows:
        raise DataNotFoundError(
            "no row of memory has a graph",
            "`python -m dataset.raw_graphs` brings the graphs together.",
        )
    report: dict[str, object] = {}
    lines: dict[tuple[str, str, str], list[_Answer]] = {}
    everything: list[_Answer] = []
    for name in sorted({row.held_out for row in rows}):
        mine = [row for row in rows if row.held_out == name]
        rest = [row for row in rows if row.held_out != name]
        model = fit_model(rest or mine, contexts)
        known = {
            sample.source: sample.counted_mb - model.context_mb_per_sm * sample.sm_count
            for sample in contexts
            if sample.whole_model
        }
        known |= fit_contexts(rest).installations if rest else {}
        for row in mine:
            asked = None
            if row.source in known:  # other models of the same installation were measured
                plain = MemoryGpu(row.sm_count)  # of the default class
                shared = model.context_of(plain, convolves=row.usage.convolves).context_mb
                asked = shared - model.context_mb + known[row.source]
            answer = _Answer.of(model, row, asked)
            everything.append(answer)
            table = row.source if row.part else f"{row.model}, {row.source}"
            # All that other people measured has a line besides.
            for each in (table,) if row.part else (table, "all"):
                lines.setdefault((each, row.device, row.precision), []).append(answer)
    for (table, device, precision), answers in lines.items():
        of = {"gpu": device, "data": f"{table}, {precision}", "split": "model held out"}
        report[f"{table}, {device}, {precision}"] = {**of, **_errors(answers)}
    for source, answers in laboratories(rows, contexts).items():
        of = {"gpu": answers[0].row.device, "data": source, "split": "laboratory held out"}
        report[f"L: {source}"] = {**of, **_errors(answers)}
    report["all"] = _errors(everything)
    report["not used"] = UNUSED
    return fit_model(rows, contexts), report


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is predicted of a row.

    Attributes:
        row: measured row.
        log_ratio: log of predicted over measured memory.
        log_sd: predicted standard deviation of it.
    """

    row: MemorySample
    log_ratio: float
    log_sd: float

    @classmethod
    def of(cls, model: MemoryModel, row: MemorySample, asked: AskedContext) -> _Answer:
        point = row.usage, row.gpu, asked
        ratio = model.memory_mb(*point) / row.memory_mb
        return cls(row, float(np.log(ratio)), model.log_sd(*point))


def laboratories(
    rows: Sequence[MemorySample], contexts: Sequence[ContextSample]
) -> dict[str, list[_Answer]]:
    """Return the rows of each laboratory as a model predicts them that nothing of it taught."""
    found = {}
    for source in sorted({row.source for row in rows}):
        rest = [row for row in rows if row.source != source]
        if rest:
            model = fit_model(rest, [sample for sample in contexts if sample.source != source])
            mine = [row for row in rows if row.source == source]
            found[source] = [_Answer.of(model, row, None) for row in mine]
    return found


def memory_lines(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line of the card for each table; other people's have one for each architecture."""
    questions = {
        "model held out": "memory of a model never seen",
        "laboratory held out": "memory on a machine of which nothing was measured",
    }
    return [
        {
            "gpu": found["gpu"],
            "target": "memory_mb",
            "data": found["data"],
            "split": found["split"],
            "n": found["n"],
            "median_ape": round(100 * found["median_ape"], 2),
            "mape": round(100 * found["mape"], 2),
            "coverage": round(100 * found["coverage"], 1),
            "below_bound": round(100 * found["below_bound"], 1),
            "question": questions[found["split"]],
        }
        for found in report.values()
        if "gpu" in found
    ]


def _errors(answers: Iterable[_Answer]) -> dict[str, float]:
    """Return errors, the share inside the 90 % interval, and the share below the 99 % bound."""
    found = list(answers)
    ratio = np.array([answer.log_ratio for answer in found])
    sd = np.array([answer.log_sd for answer in found])
    return {
        **relative_errors(np.expm1(ratio)),
        "coverage": float((np.abs(ratio) <= Z90 * sd).mean()),
        "below_bound": float((ratio + Z99 * sd >= 0).mean()),
    }


def relative_errors(error: Floats) -> dict[str, float]:
    """Return what is reported of predicted over measured memory, minus 1."""
    ape = np.abs(error)
    return {
        "n": len(error),
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "worst_under": float(error.min()),
        "worst_over": float(error.max()),
    }


def log_spread(error: Floats) -> float:
    """Return the log standard deviation whose 90 % and 99 % bounds hold the errors seen.

    The one-sided 99 % bound covers all but one in a hundred, so the worst of fewer than a hundred:
    three models say little about a tail.
    """
    low = np.quantile(error, 0.01, method="lower")
    return float(max(np.quantile(np.abs(error), 0.9) / Z90, -low / Z99))


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
) -> None:
    """Print the fitted memory model and its errors as JSON."""
    tell_absent(data)
    model, report = fit_memory(data, graphs)
    typer.echo(json.dumps({"model": asdict(model), "left out": report}, indent=2))


if __name__ == "__main__":
    typer.run(main)
