"""Fits how the kernels of a training step deviate from the law of inference.

    log slow-down = inference + part and class + boosted trees

A number for each part of the step and class of kernels, two for each table of measurements (of its
time, and of its machine's launches) and three for what occupies the host (`step_launches`) are
found by Gauss-Newton; the trees then see every kernel of gradients and of the update, with the loss
on the sum of a row. Of the forward pass they say nothing: inference taught it, and a sum of both
does not tell which of the two was slow. An answer has nothing of a table: where all of them wait
longer for their hosts, steps are taken to occupy a host longer, not every machine to be slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xgboost
from numpy.typing import NDArray

from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.phases import HOST_TERMS
from dippm.estimate.models.step_law import is_beyond_forward, step_features
from training.hybrid.fit.trees import KernelRows, TreeSettings, boosted
from training.steps.base import Base
from training.steps.examples import StepExamples

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
ROUNDS = 20
FITTED = ("forward", "backward_input", "backward_weight", "optimizer")
"""Parts that were measured; what checkpointing runs again runs as it did forward."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How to fit.

    Attributes:
        trees: settings of the trees. Their reach is short: what they learn is of the few GPUs whose
            steps were measured, and further reach made other GPUs worse.
        huber: where the loss of the log error turns from square to linear.
        forward_pull: ridge, over the number of rows, of the forward pass, which inference taught:
            sums of steps alone do not tell it from its gradients.
        class_pull, part_pull, launch_pull, table_pull: pulls of the other terms.
        machine_pull: pull of the launch time of each table's machine, stronger than that of what
            all steps have in common.
    """

    trees: TreeSettings = field(
        default_factory=lambda: TreeSettings(rounds=80, rate=0.2, reach=0.3)
    )
    huber: float = 0.1
    forward_pull: float = 0.3
    class_pull: float = 1e-3
    part_pull: float = 1e-4
    launch_pull: float = 3e-5
    table_pull: float = 1e-2
    machine_pull: float = 1e-3


@dataclass(frozen=True, slots=True)
class Started:
    """Examples as a fit of inference sees them.

    Attributes:
        slow: log slow-down of each kernel by the shared law, shape (K,).
        added: log slow-down by the GPU of its row, shape (K,).
        launch_ms: launch time of the default machine of each row's GPU, shape (R,).
        copy_ms: time of copying its input, shape (R,).
    """

    slow: Floats
    added: Floats
    launch_ms: Floats
    copy_ms: Floats

    @classmethod
    def of(cls, examples: StepExamples, base: Base) -> Started:
        """Ask a fit of inference about every kernel."""
        copies = np.array([row.timer == "wall+copy" for row in examples.rows])
        return cls(
            slow=base.log_slowdown(examples.features),
            added=base.added(examples),
            launch_ms=base.launch_ms(examples),
            copy_ms=np.where(copies, examples.input_bytes / base.copy_bytes_per_ms, 0.0),
        )


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What was found by Gauss-Newton.

    Attributes:
        log_slowdown: log slow-down by part and class, shape (parts of FITTED, classes).
        log_launch: log host time of HOST_TERMS, in launches of inference, shape (3,).
        offsets: offset of the log latency by table.
        machines: offset of the log launch time by table.
    """

    log_slowdown: Floats
    log_launch: Floats
    offsets: Mapping[str, float]
    machines: Mapping[str, float]

    def of_kernels(self, part: Indices, kind: Indices) -> Floats:
        """Return the log slow-down of kernels, shape (K,)."""
        return np.asarray(self.log_slowdown[fitted_part(part), kind])


def fitted_part(part: Indices) -> Indices:
    """Return the position in FITTED of each part, which is one in PARTS."""
    places = [FITTED.index(name) if name in FITTED else 0 for name in PARTS]
    return np.array(places, dtype=np.int64)[part]


def kernel_rows(
    examples: StepExamples, started: Started, chosen: Indices, found: Multipliers | None = None
) -> tuple[KernelRows, Indices]:
    """Return rows as arrays over their kernels, and the positions of these kernels.

    Args:
        examples: all rows.
        started: as a fit of inference sees them.
        chosen: rows, in rising order.
        found: multipliers; without them launches are those of inference.
    """
    is_chosen = np.zeros(len(examples.rows), dtype=bool)
    is_chosen[chosen] = True
    row_of = examples.row_of
    kernels = np.flatnonzero(is_chosen[row_of])
    tables = [examples.rows[i].table for i in chosen]
    launch = np.exp(found.log_launch if found else np.zeros(len(HOST_TERMS)))
    offsets = found.offsets if found else {}
    machines = found.machines if found else {}
    launch_ms = started.launch_ms[chosen] * np.exp([machines.get(name, 0.0) for name in tables])
    return (
        KernelRows(
            features=step_features(
                examples.features[kernels], examples.part[kernels], started.slow[kernels]
            ),
            base_ms=np.exp(examples.log_roofline[kernels]) * examples.count[kernels],
            terms=started.slow[kernels] + started.added[kernels],
            row=np.searchsorted(chosen, row_of[kernels]),
            serial_ms=examples.serial_ms[chosen],
            host_ms=(examples.launches[chosen] @ launch) * launch_ms,
            copy_ms=started.copy_ms[chosen],
            offset=np.array([offsets.get(name, 0.0) for name in tables]),
            label=np.log(examples.latency_ms[chosen]),
        ),
        kernels,
    )


def fit_step(
    examples: StepExamples, started: Started, train: Indices, settings: StepSettings
) -> tuple[Multipliers, xgboost.Booster]:
    """Fit on rows."""
    weight = _weights(examples, train, settings)
    found = fit_multipliers(examples, started, train, weight, settings)
    rows, kernels = kernel_rows(examples, started, train, found)
    part = examples.part[kernels]
    base = rows.terms + found.of_kernels(part, examples.kind[kernels])
    return found, boosted(rows, base, weight, settings.trees, free=is_beyond_forward(part))


def predict_step(
    examples: StepExamples,
    started: Started,
    chosen: Indices,
    found: Multipliers,
    booster: xgboost.Booster,
    reach: float,
) -> tuple[Floats, Floats]:
    """Return the log latency of rows with the trees, and without them, shape (len(chosen),)."""
    rows, kernels = kernel_rows(examples, started, chosen, found)
    part = examples.part[kernels]
    base = rows.terms + found.of_kernels(part, examples.kind[kernels])
    data = xgboost.DMatrix(rows.features, base_margin=np.zeros(len(kernels)))
    step = np.clip(booster.predict(data, output_margin=True).astype(np.float64), -reach, reach)
    step = np.where(is_beyond_forward(part), step, 0.0)
    whole, plain = (rows.log_ms(rows.base_ms * np.exp(base + s))[0] for s in (step, 0.0))
    return whole, plain


def fit_multipliers(
    examples: StepExamples, started: Started, train: Indices, weight: Floats, settings: StepSettings
) -> Multipliers:
    """Find the numbers that the rows share."""
    rows, kernels = kernel_rows(examples, started, train)
    parts, tables = len(FITTED), _tables(examples, train)
    group = fitted_part(examples.part[kernels]) * N_KINDS + examples.kind[kernels]
    size, count = parts * N_KINDS, len(train)
    place = rows.row * size + group
    sums = np.bincount(place, rows.base_ms * np.exp(rows.terms), count * size)
    sums = sums.reshape(count, size)
    table = np.array([tables.index(examples.rows[i].table) for i in train])
    of_table = np.eye(len(tables))[table]
    launching_ms = examples.launches[train] * started.launch_ms[train, None]
    pull = np.concatenate(
        [
            [settings.forward_pull, *[settings.part_pull] * (parts - 1)],
            np.full(N_KINDS, settings.forward_pull),
            np.full(size - N_KINDS, settings.class_pull),
            [settings.launch_pull] * len(HOST_TERMS),
            np.full(len(tables), settings.table_pull),
            np.full(len(tables), settings.machine_pull),
        ]
    )
    p = np.zeros(len(pull))
    launch = slice(parts + size, parts + size + len(HOST_TERMS))
    offsets = slice(launch.stop, launch.stop + len(tables))
    machines = slice(offsets.stop, offsets.stop + len(tables))
    for _ in range(ROUNDS):
        log_slow = np.repeat(p[:parts], N_KINDS) + p[parts : parts + size]
        times = sums * np.exp(log_slow)
        device = times.sum(axis=1) + rows.serial_ms
        each = launching_ms * np.exp(p[launch]) * np.exp(p[machines][table])[:, None]
        host = each.sum(axis=1)
        power = (host / device) ** 8
        wall = device * (1 + power) ** (1 / 8)
        total = wall + rows.copy_ms
        shares = times * (wall / total / (1 + power) / device)[:, None]
        of_host = wall / total * power / (1 + power)
        of_launches = of_host[:, None] * each / np.maximum(host, 1e-12)[:, None]
        slopes = np.column_stack(
            [
                shares.reshape(count, parts, N_KINDS).sum(axis=2),
                shares,
                of_launches,
                of_table,
                of_host[:, None] * of_table,
            ]
        )
        error = np.log(total) + p[offsets][table] - rows.label
        bend = weight / np.sqrt(1 + (error / settings.huber) ** 2)
        ridge = pull * weight.sum()
        normal = (slopes * bend[:, None]).T @ slopes + np.diag(ridge)
        step = np.linalg.solve(normal, (slopes * bend[:, None]).T @ error + ridge * p)
        p = p - np.clip(step, -1, 1)
    slow = np.repeat(p[:parts], N_KINDS) + p[parts : parts + size]
    return Multipliers(
        slow.reshape(parts, N_KINDS),
        p[launch].copy(),
        dict(zip(tables, p[offsets].tolist(), strict=True)),
        dict(zip(tables, p[machines].tolist(), strict=True)),
    )


def _tables(examples: StepExamples, train: Indices) -> Sequence[str]:
    return sorted({examples.rows[i].table for i in train})


def _weights(examples: StepExamples, train: Indices, settings: StepSettings) -> Floats:
    """Return the weight of each row, mean 1."""
    names = [examples.rows[i].table for i in train]
    sizes = Counter(names)
    raw = np.array([sizes[name] ** (settings.trees.balance - 1) for name in names])
    return np.asarray(raw * len(raw) / raw.sum())
