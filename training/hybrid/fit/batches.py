"""Batches of rows as tensors: the kernels of several models as one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.hybrid.rows.examples import Examples

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step as tensors.

    Attributes:
        features, log_roofline, count: arrays of the kernels, (K, F), (K,), (K,).
        row: row of each kernel, (K,).
        inward, outward: data flow, (2, E) each, as neighbour and kernel.
        table: table of each row, position in the sorted names, (R,).
        launches, input_bytes, serial_ms: (R,).
        kernel_timer, copies: whether the clock of the row measures kernels alone, copies too, (R,).
        label: log ms, (R,).
    """

    features: Tensor
    log_roofline: Tensor
    count: Tensor
    row: Tensor
    inward: Tensor
    outward: Tensor
    table: Tensor
    launches: Tensor
    input_bytes: Tensor
    serial_ms: Tensor
    kernel_timer: Tensor
    copies: Tensor
    label: Tensor


class Batches:
    """Cuts batches of rows out of examples."""

    def __init__(self, examples: Examples, tables: Mapping[str, int]) -> None:
        self.examples = examples
        rows = examples.rows
        self.table = np.array([tables.get(r.table, -1) for r in rows])
        self.kernel_timer = np.array([r.timer == "kernel" for r in rows])
        self.copies = np.array([r.timer == "wall+copy" for r in rows])
        self.label = examples.log_latency

    def take(self, chosen: Indices) -> Batch:
        """Return the batch of these rows."""
        e, tensor = self.examples, torch.from_numpy
        kernels, row = _within(e.start, chosen)
        first = np.concatenate([[0], np.cumsum(np.diff(e.start)[chosen])])[:-1]
        return Batch(
            features=tensor(e.features[kernels]),
            log_roofline=tensor(e.log_roofline[kernels]),
            count=tensor(e.count[kernels]),
            row=tensor(row),
            inward=_flows(e.inward, e.inward_start, chosen, first),
            outward=_flows(e.outward, e.outward_start, chosen, first),
            table=tensor(self.table[chosen]),
            launches=tensor(e.launches[chosen]),
            input_bytes=tensor(e.input_bytes[chosen]),
            serial_ms=tensor(e.serial_ms[chosen]),
            kernel_timer=tensor(self.kernel_timer[chosen]),
            copies=tensor(self.copies[chosen]),
            label=tensor(self.label[chosen]),
        )


def _within(start: Indices, chosen: Indices) -> tuple[Indices, Indices]:
    """Return the positions that belong to the chosen rows, and the place of the row of each."""
    sizes = start[chosen + 1] - start[chosen]
    row = np.repeat(np.arange(len(chosen)), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(start[chosen], sizes) + within, row


def _flows(flows: NDArray[np.int32], start: Indices, chosen: Indices, first: Indices) -> Tensor:
    positions, row = _within(start, chosen)
    return torch.from_numpy(flows[:, positions].astype(np.int64) + first[row])
