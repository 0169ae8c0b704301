"""Measured rows → arrays that the hybrid predictor trains on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.conditions import Mode, Precision, Timer
from dippm.devices import Device, MigProfile
from dippm.features.kernel_features import DeviceView, kernel_features, roofline_ms, serial_ms
from dippm.features.kernel_table import KernelTable
from dippm.graph.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class Row:
    """One measured latency.

    Attributes:
        source: data source.
        host: machine and software that launched it; rows of one host share its launch time.
        graph: key for the graph lookup.
        architecture, family: grouping keys of the splits.
    """

    source: str
    host: str
    device: Device
    timer: Timer
    precision: Precision
    mode: Mode
    channels_last: bool
    batch: int
    graph: str
    architecture: str
    family: str
    latency_ms: float
    mig: MigProfile | None = None


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows with their kernels, equal kernels of a row merged.

    Attributes:
        rows: what was measured, length R.
        features: shape (K, N_FEATURES).
        log_roofline: of each kernel, in log ms, shape (K,).
        count: how many equal kernels it stands for, shape (K,).
        start: kernels of row r are start[r] to start[r + 1], shape (R + 1,).
        launches, input_bytes, serial_ms: shape (R,).
    """

    rows: Sequence[Row]
    features: NDArray[np.float32]
    log_roofline: NDArray[np.float32]
    count: NDArray[np.float32]
    start: NDArray[np.int64]
    launches: NDArray[np.float32]
    input_bytes: NDArray[np.float32]
    serial_ms: NDArray[np.float32]

    @property
    def log_latency(self) -> NDArray[np.float32]:
        """Labels, log ms, shape (R,)."""
        return np.log([row.latency_ms for row in self.rows]).astype(np.float32)


GraphLookup = Callable[[str], ModelGraph]


def build_examples(rows: Sequence[Row], graph: GraphLookup) -> Examples:
    """Expand the kernels of every row; tables are shared between rows of one graph and precision.

    Args:
        rows: sorted by graph, so that one graph's tables are in memory at a time.
        graph: key → graph.
    """
    parts: list[tuple[NDArray[np.float32], ...]] = []
    launches, inputs, serial = [], [], []
    tables: dict[tuple[object, ...], KernelTable] = {}
    current = None
    for row in rows:
        if row.graph != current:
            current, tables = row.graph, {}
        key = (row.precision, row.mode, row.channels_last)
        if key not in tables:
            tables[key] = KernelTable.of(
                graph(row.graph), row.precision, row.mode, channels_last=row.channels_last
            )
        table = tables[key]
        parts.append(_kernels(table, row))
        launches.append(table.launches)
        inputs.append(table.input_bytes[0] * row.batch + table.input_bytes[1])
        serial.append(float(serial_ms(table, row.batch).sum()))
    sizes = [len(p[1]) for p in parts]
    return Examples(
        rows=rows,
        features=np.concatenate([p[0] for p in parts]),
        log_roofline=np.concatenate([p[1] for p in parts]),
        count=np.concatenate([p[2] for p in parts]),
        start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        launches=np.array(launches, dtype=np.float32),
        input_bytes=np.array(inputs, dtype=np.float32),
        serial_ms=np.array(serial, dtype=np.float32),
    )


def join_examples(parts: Sequence[Examples]) -> Examples:
    """Return one collection out of several."""
    ends = np.cumsum([0] + [int(p.start[-1]) for p in parts])
    starts = [p.start[:-1] + end for p, end in zip(parts, ends, strict=False)]
    return Examples(
        rows=[row for p in parts for row in p.rows],
        features=np.concatenate([p.features for p in parts]),
        log_roofline=np.concatenate([p.log_roofline for p in parts]),
        count=np.concatenate([p.count for p in parts]),
        start=np.concatenate([*starts, ends[-1:]]).astype(np.int64),
        launches=np.concatenate([p.launches for p in parts]),
        input_bytes=np.concatenate([p.input_bytes for p in parts]),
        serial_ms=np.concatenate([p.serial_ms for p in parts]),
    )


def _kernels(table: KernelTable, row: Row) -> tuple[NDArray[np.float32], ...]:
    view = DeviceView.of(row.device, row.mig)
    features = kernel_features(
        table, row.batch, view, channels_last=row.channels_last, compiled=row.mode == "compiled"
    )
    roofline = np.log(roofline_ms(table, row.batch, view)).astype(np.float32)
    joined = np.concatenate([features, roofline[:, None]], axis=1)
    unique, counts = np.unique(joined, axis=0, return_counts=True)
    return (
        np.ascontiguousarray(unique[:, :-1]),
        np.ascontiguousarray(unique[:, -1]),
        counts.astype(np.float32),
    )
