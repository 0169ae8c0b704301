"""What a few measurements on a GPU that never trained are worth: `dippm calibrate`, tried out.

Of each GPU held out, ten models or a hundred operators calibrate and all other models are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.calibration import MeasuredRow, calibrate, log_ms, offsets_of
from training.evaluation.metrics import errors
from training.hybrid.fit.batches import Batches, Indices
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.fit.mixture import Mixture
from training.hybrid.judge.held_out_times import fitted, shared_log_slowdown
from training.hybrid.rows.examples import Examples

N_MODELS, N_OPERATORS = 10, 100
FEWEST_TESTED = 10


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of one table of a GPU that was held out."""

    gpu: str
    name: str
    rows: Indices


def calibrated(runner: Runner, tasks: Sequence[Task], mixture: Mixture) -> list[dict[str, Any]]:
    """Return errors by table of a GPU held out: without data, with models, with operators."""
    lines = []
    for task in tasks:
        for table in _tables(runner.examples, task):
            measured = measured_rows(runner, task, table.rows, mixture)
            chosen = _spread(measured, N_MODELS)
            rest = [r for i, r in enumerate(measured) if i not in set(chosen)]
            if len(rest) < FEWEST_TESTED:
                continue
            packs = {"no measurement": [], f"{N_MODELS} models": [measured[i] for i in chosen]}
            mine = _operators_of(runner.examples, task.test, table.gpu)
            if len(mine):
                packs[f"{len(mine)} operators"] = measured_rows(runner, task, mine, mixture)
            for pack, rows in packs.items():
                found = _tested(rest, rows, table.gpu)
                lines.append({"gpu": table.gpu, "table": table.name, "measured": pack, **found})
    return lines


def measured_rows(runner: Runner, task: Task, rows: Indices, mixture: Mixture) -> list[MeasuredRow]:
    """Return rows of a GPU held out with what is predicted for each class of kernels.

    The terms are those that are usual for such a GPU, since no table of its own trained.
    """
    examples = runner.examples
    network, trees = fitted(runner, task)
    batch = Batches(examples, runner.tables).take(rows)
    launch_ms = float(network.usual.detach().exp())
    copy_rate = float(network.log_copy.detach().exp())
    slow = shared_log_slowdown(network, trees, batch, runner.novelty(task, rows), mixture)
    kind = batch.features[:, :N_KINDS].argmax(dim=1).numpy()
    slow = slow + network.terms.detach().numpy()[batch.table.numpy()[batch.row.numpy()], kind]
    times = np.exp(batch.log_roofline.numpy() + slow) * batch.count.numpy()
    class_ms = np.zeros((len(rows), N_KINDS))
    np.add.at(class_ms, (batch.row.numpy(), kind), times)
    return [
        MeasuredRow(
            model=examples.rows[row].architecture,
            class_ms=class_ms[i],
            launches=float(batch.launches[i]),
            host_ms=0.0 if batch.kernel_timer[i] else float(batch.launches[i]) * launch_ms,
            copy_ms=float(batch.input_bytes[i]) / copy_rate if batch.copies[i] else 0.0,
            latency_ms=examples.rows[row].latency_ms,
        )
        for i, row in enumerate(rows)
    ]


def _tested(rest: Sequence[MeasuredRow], pack: Sequence[MeasuredRow], gpu: str) -> dict[str, Any]:
    offsets = np.zeros(2 + N_KINDS)
    if pack:
        offsets = offsets_of(calibrate(pack, gpu))
    error = errors([r.latency_ms for r in rest], np.exp(log_ms(rest, offsets)[0]))
    return {
        "n": error.n,
        "mape": round(error.mape, 2),
        "median_ape": round(error.median_ape, 2),
        "log_bias": round(error.log_bias, 3),
    }


def _tables(examples: Examples, task: Task) -> list[_Table]:
    found: dict[tuple[str, str], list[int]] = {}
    for i in task.test:
        row = examples.rows[i]
        if row.is_model and row.mig is None:
            found.setdefault((row.device.name, row.table), []).append(int(i))
    return [_Table(gpu, name, np.array(rows)) for (gpu, name), rows in sorted(found.items())]


def _spread(rows: Sequence[MeasuredRow], count: int) -> list[int]:
    """Return rows from the fastest to the slowest, evenly."""
    order = np.argsort([r.latency_ms for r in rows], kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return sorted({int(order[p]) for p in places})


def _operators_of(examples: Examples, tested: Indices, gpu: str) -> Indices:
    rows = examples.rows
    found = [i for i in tested if rows[i].kind == "operator" and rows[i].device.name == gpu]
    mine = np.array(found, dtype=np.int64)
    if len(mine) <= N_OPERATORS:
        return mine
    return np.sort(np.random.default_rng(0).choice(mine, N_OPERATORS, replace=False))
