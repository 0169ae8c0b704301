"""Default offsets from the shared law, for GPUs that were never measured.

GPUs with the same kind of memory err alike, so tables of one kind are averaged: each GPU counts
once, whatever the number of its tables, and by class the more the more of its rows support it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from dippm.devices import Device, MemoryFamily
from dippm.estimate.conditions import Mode, Timer
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.gpu_effects import ANY_MEMORY, by_class
from training.hybrid.fit.batches import Indices
from training.hybrid.fit.network import KernelNetwork
from training.hybrid.rows.examples import Examples

Floats = NDArray[np.float64]
DefaultOffsets = dict[str, dict[Mode, dict[str, float]]]
"""Log slow-down by kind of memory, mode and class of kernels."""
CLOCKS: tuple[Timer, ...] = ("wall", "wall+copy", "event", "kernel")
"""Clocks by preference: of several tables of models of a GPU, those with the first one count."""
HALF_WEIGHT_ROWS = 10.0
"""Rows of one class alone with which a GPU has half its weight: rows err by some 0.3 in the log,
GPUs differ by some 0.1."""
HUBER_CUT_OFF = 0.5
"""Distance from the mean, in the log, beyond which an offset pulls it no further."""
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class TableOffsets:
    """Offsets of one table of measurements from the law that all tables share, by a fit.

    Attributes:
        device, mode, timer: conditions of its rows.
        of_models: whether it times whole models, not operators or small programs alone.
        offsets: log slow-down by class, (classes,).
        support: number of rows with each class, each weighted by the square of the class's share
            of its roofline time, (classes,); 0 where the class does not occur.
    """

    device: Device
    mode: Mode
    timer: Timer
    of_models: bool
    offsets: Floats
    support: Floats


def default_offsets(tables: Iterable[TableOffsets]) -> DefaultOffsets:
    """Return the default offsets for each kind of memory and mode.

    Where no GPU with that memory was measured in a mode, its tables of eager mode stand in, and
    those of all GPUs where there are none; of either those of whole models alone, if there are
    any. `ANY_MEMORY` is for GPUs whose memory is not known. A class that no table of the kind
    supports is missing.
    """
    gpus = _one_per_gpu(tables)
    defaults: DefaultOffsets = {}
    for family in (*get_args(MemoryFamily), ANY_MEMORY):
        defaults[family] = {mode: _mean(_stand_ins(gpus, family, mode)) for mode in get_args(Mode)}
    return defaults


def table_offsets(
    networks: Sequence[KernelNetwork],
    examples: Examples,
    train: Indices,
    tables: Mapping[str, int],
) -> list[TableOffsets]:
    """Return the offsets of each table that trained, the mean over networks fitted to its rows.

    The offset that a table has for all classes is part of them, as where those of a measured GPU
    are published.
    """
    first = {examples.rows[i].table: examples.rows[i] for i in train[::-1]}
    of_models = {examples.rows[i].table for i in train if examples.rows[i].is_model}
    with torch.no_grad():
        every = torch.stack([n.terms + n.offset[:, None] for n in networks]).mean(dim=0).numpy()
    support = _support(examples, train, tables)
    return [
        TableOffsets(
            row.device,
            row.mode,
            row.timer,
            name in of_models,
            every[i].astype(np.float64),
            support[i],
        )
        for name, row in sorted(first.items())
        for i in [tables[name]]
    ]


def adopt_default_offsets(
    network: KernelNetwork, examples: Examples, train: Indices, tables: Mapping[str, int]
) -> None:
    """Give tables of a GPU and mode that did not train the default offsets."""
    found = table_offsets([network], examples, train, tables)
    measured = {(table.device.name, table.mode) for table in found}
    defaults = default_offsets(found)
    rows = {row.table: row for row in examples.rows if row.table in tables}
    for name, row in rows.items():
        if (row.device.name, row.mode) not in measured:
            given = defaults[row.device.memory_family or ANY_MEMORY][row.mode]
            with torch.no_grad():
                network.terms[tables[name]] = torch.from_numpy(by_class(given)).float()


def _one_per_gpu(tables: Iterable[TableOffsets]) -> list[TableOffsets]:
    """Return one table for each GPU and mode: the mean of those closest to whole models."""
    groups: dict[tuple[str, Mode], list[TableOffsets]] = {}
    for table in tables:
        groups.setdefault((table.device.name, table.mode), []).append(table)
    found = []
    for group in groups.values():
        best = min(map(_rank, group))
        chosen = [table for table in group if _rank(table) == best]
        support = np.array([table.support for table in chosen])
        total = support.sum(axis=0)
        offsets = (support * [table.offsets for table in chosen]).sum(axis=0)
        offsets = offsets / np.maximum(total, 1e-12)
        found.append(replace(chosen[0], offsets=offsets, support=total))
    return found


def _rank(table: TableOffsets) -> tuple[bool, int]:
    return not table.of_models, CLOCKS.index(table.timer)


def _stand_ins(gpus: Sequence[TableOffsets], family: str, mode: Mode) -> list[TableOffsets]:
    stand_ins: tuple[tuple[str, Mode], ...] = (
        (family, mode),
        (family, "eager"),
        (ANY_MEMORY, mode),
        (ANY_MEMORY, "eager"),
    )
    for memory, wanted in stand_ins:
        found = [
            gpu
            for gpu in gpus
            if gpu.mode == wanted and memory in (gpu.device.memory_family, ANY_MEMORY)
        ]
        if found:
            return [gpu for gpu in found if gpu.of_models] or found
    return []


def _mean(gpus: Sequence[TableOffsets]) -> dict[str, float]:
    """Return the weighted mean by class (Huber's), of the classes with support."""
    if not gpus:
        return {}
    offsets, support = np.array([g.offsets for g in gpus]), np.array([g.support for g in gpus])
    weight = support / (support + HALF_WEIGHT_ROWS)
    total = weight.sum(axis=0)
    middle = (weight * offsets).sum(axis=0) / np.maximum(total, 1e-12)
    for _ in range(50):
        near = np.clip(offsets, middle - HUBER_CUT_OFF, middle + HUBER_CUT_OFF)
        middle = (weight * near).sum(axis=0) / np.maximum(total, 1e-12)
    known = total > 0
    names = zip(KERNEL_CLASSES, middle, known, strict=True)
    return {name: round(float(term), 5) for name, term, is_known in names if is_known}


def _support(examples: Examples, train: Indices, tables: Mapping[str, int]) -> Floats:
    """Return `TableOffsets.support` of each table, (tables, classes)."""
    found = np.zeros((len(tables), N_KINDS))
    trains = np.zeros(len(examples.rows), dtype=bool)
    trains[train] = True
    position = np.array([tables.get(row.table, -1) for row in examples.rows])
    for first in range(0, len(trains), CHUNK):
        rows = slice(first, min(first + CHUNK, len(trains)))
        starts = examples.start[rows.start : rows.stop + 1]
        kernels = slice(int(starts[0]), int(starts[-1]))
        kind = examples.features[kernels, :N_KINDS].argmax(axis=1)
        times = np.exp(examples.log_roofline[kernels], dtype=np.float64) * examples.count[kernels]
        place = np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * N_KINDS + kind
        by_kind = np.bincount(place, times, (len(starts) - 1) * N_KINDS).reshape(-1, N_KINDS)
        share = by_kind / np.maximum(by_kind.sum(axis=1, keepdims=True), 1e-12)
        np.add.at(found, position[rows][trains[rows]], share[trains[rows]] ** 2)
    return found
