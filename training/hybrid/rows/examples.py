"""Measured rows → graphs of kernels as arrays, which the default predictor trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device, MigProfile
from dippm.estimate.conditions import Conditions, Mode, Precision, Timer
from dippm.estimate.features.kernel_features import (
    N_KINDS,
    DeviceView,
    kernel_features,
    roofline_ms,
    serial_ms,
)
from dippm.estimate.features.kernel_table import QUANTITIES, KernelGraph, KernelTable
from dippm.estimate.features.kernels.run import NORMS, KeptHalf
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.model.graph.model_graph import ModelGraph

COLLECTED = "collected"
"""First part of the name of a source that is a set of our own; its folder is the other."""
PARTS: Mapping[str, str] = {"operator": "operator", "chain": "module"}
"""First words of the families of what is no whole model, and what the report calls it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured latency.

    Attributes:
        row_id: identifier in the table, see `dataset.measured.table`.
        source: data source.
        table: source, GPU, software, mode and machine: rows of one table share their terms.
        graph: key for the graph lookup.
        architecture, family: grouping keys of the splits; that of what is no whole model begins
            with a word of `PARTS`.
        scale: size of a GPT, "s", "m" or "l"; a key of a split, too.
        kept_half: what ran in half precision where PyTorch widens it, see `KeptHalf`.
        node: the operator of the graph whose kernels alone the latency is of; None for all.
        point: measurement that several rows come from; a random split keeps them together.
    """

    row_id: str
    source: str
    table: str
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
    scale: str = ""
    kept_half: tuple[KeptHalf, ...] = ()
    node: int | None = None
    point: str = ""

    @property
    def kind(self) -> str:
        """Return what was measured: "model", "module" or "operator"."""
        return PARTS.get(self.family.partition(" ")[0], "model")

    @property
    def is_model(self) -> bool:
        """Tell whether a whole model was measured, not an operator or a chain of a few."""
        return self.kind == "model"

    @property
    def is_own(self) -> bool:
        """Tell whether the row is of a set of our own."""
        return self.source.startswith(f"{COLLECTED}/")

    @property
    def half_norms(self) -> set[str]:
        """Return the operators of norms that ran in half precision, see `KeptHalf`."""
        return {op for op, kept in NORMS.items() if kept in self.kept_half}

    @property
    def conditions(self) -> Conditions:
        """Return what a user who measured the row would state of it."""
        return Conditions(
            device=self.device,
            batch=self.batch,
            precision=self.precision,
            mode=self.mode,
            timer=self.timer,
            mig=self.mig,
            channels_last=self.channels_last,
        )

    def kernel_table(self, graph: ModelGraph, precision: Precision) -> KernelTable:
        """Return the kernels of the whole graph as the measured software launched them.

        Args:
            graph: of the row.
            precision: of the row, or one with the same arithmetic.
        """
        return KernelTable.of(
            graph, precision, self.mode, channels_last=self.channels_last, kept_half=self.kept_half
        )

    @property
    def is_end_to_end(self) -> bool:
        """Tell whether a whole model was timed by the wall on a whole GPU, as predictions are."""
        return self.is_model and self.timer == "wall" and self.mig is None


def mark_others(rows: Sequence[Row]) -> NDArray[np.bool_]:
    """Return a mask, shape (len(rows),), of the rows of other people's tables.

    All are marked where there are none but our own.
    """
    own = np.array([row.is_own for row in rows], dtype=bool)
    return ~own | own.all()


def sampled_by(rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]], most: int) -> list[Row]:
    """Return at most so many rows of each key, always the same ones, in the order of the keys."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(key(row), []).append(row)
    return [
        row
        for _, mine in sorted(cells.items())
        for row in sorted(mine, key=lambda row: crc32(row.row_id.encode()))[:most]
    ]


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows with their kernels; kernels of a row that the network cannot tell apart are merged.

    Attributes:
        rows: measured rows, length R.
        features: shape (K, N_FEATURES).
        log_roofline: roofline time of each kernel, in log ms, shape (K,).
        count: how many kernels it stands for, shape (K,).
        start: kernels of row r are start[r] to start[r + 1], shape (R + 1,).
        inward, outward: what each kernel reads from and writes to, shape (2, E) each: neighbour and
            kernel, counted from the row's first kernel; see `MergedKernels`.
        inward_start, outward_start: first data flow of each row, as `start`.
        launches, input_bytes, serial_ms: shape (R,).
    """

    rows: Sequence[Row]
    features: NDArray[np.float32]
    log_roofline: NDArray[np.float32]
    count: NDArray[np.float32]
    start: NDArray[np.int64]
    inward: NDArray[np.int32]
    inward_start: NDArray[np.int64]
    outward: NDArray[np.int32]
    outward_start: NDArray[np.int64]
    launches: NDArray[np.float32]
    input_bytes: NDArray[np.float32]
    serial_ms: NDArray[np.float32]

    @property
    def log_latency(self) -> NDArray[np.float32]:
        """Labels, log ms, shape (R,)."""
        return np.log([row.latency_ms for row in self.rows]).astype(np.float32)

    @property
    def is_model(self) -> NDArray[np.bool_]:
        """Which rows are whole models, shape (R,)."""
        return np.array([row.is_model for row in self.rows], dtype=np.bool_)

    def class_roofline_ms(self) -> NDArray[np.float64]:
        """Return the roofline time of each kernel class, in ms, shape (R, classes)."""
        rows = len(self.rows)
        row = np.repeat(np.arange(rows), np.diff(self.start))
        place = row * N_KINDS + self.features[:, :N_KINDS].argmax(axis=1)
        time = np.exp(self.log_roofline.astype(np.float64)) * self.count
        sums = np.bincount(place, time, rows * N_KINDS).astype(np.float64)
        return sums.reshape(rows, N_KINDS)

    def of_row(self, row: int) -> slice:
        """Return where the kernels of a row are."""
        return slice(int(self.start[row]), int(self.start[row + 1]))


GraphLookup = Callable[[str], ModelGraph]


def build_examples(rows: Sequence[Row], graph: GraphLookup) -> Examples:
    """Expand the kernels of every row; tables are shared between rows of one graph and precision.

    A row of one operator that launches nothing by our account is left out.

    Args:
        rows: sorted by graph, so that one graph's tables are in memory at a time.
        graph: key → graph.
    """
    parts: list[_RowKernels] = []
    serial = []
    kept = []
    tables: dict[tuple[object, ...], KernelTable] = {}
    made: dict[tuple[object, ...], KernelGraph] = {}
    current = None
    for row in rows:
        if row.graph != current:
            current, tables, made = row.graph, {}, {}
        key = (row.precision, row.mode, row.channels_last, row.kept_half)
        if key not in tables:
            tables[key] = row.kernel_table(graph(row.graph), row.precision)
        part = (*key, row.node)
        if part not in made:
            table = tables[key] if row.node is None else kernels_of_node(tables[key], row.node)
            made[part] = KernelGraph.of(table, ROUNDS)
        if not len(made[part].count):
            continue
        kept.append(row)
        parts.append(_kernels(made[part], row))
        serial.append(float(serial_ms(made[part].table, row.batch) @ made[part].count))
    return Examples(
        rows=kept,
        features=np.concatenate([p.features for p in parts]),
        log_roofline=np.concatenate([p.log_roofline for p in parts]),
        count=np.concatenate([p.count for p in parts]),
        start=_starts([len(p.count) for p in parts]),
        inward=np.concatenate([p.inward for p in parts], axis=1),
        inward_start=_starts([p.inward.shape[1] for p in parts]),
        outward=np.concatenate([p.outward for p in parts], axis=1),
        outward_start=_starts([p.outward.shape[1] for p in parts]),
        launches=np.array([p.launches for p in parts], dtype=np.float32),
        input_bytes=np.array([p.input_bytes for p in parts], dtype=np.float32),
        serial_ms=np.array(serial, dtype=np.float32),
    )


def join_examples(parts: Sequence[Examples]) -> Examples:
    """Return one collection out of several."""

    def along(name: str, axis: int = 0) -> NDArray[Any]:
        return np.concatenate([getattr(p, name) for p in parts], axis=axis)

    def starts(name: str) -> NDArray[np.int64]:
        return _starts(np.concatenate([np.diff(getattr(p, name)) for p in parts]))

    return Examples(
        rows=[row for p in parts for row in p.rows],
        start=starts("start"),
        inward=along("inward", 1),
        inward_start=starts("inward_start"),
        outward=along("outward", 1),
        outward_start=starts("outward_start"),
        **{
            name: along(name)
            for name in (
                "features",
                "log_roofline",
                "count",
                "launches",
                "input_bytes",
                "serial_ms",
            )
        },
    )


@dataclass(frozen=True, slots=True)
class _RowKernels:
    features: NDArray[np.float32]
    log_roofline: NDArray[np.float32]
    count: NDArray[np.float32]
    inward: NDArray[np.int32]
    outward: NDArray[np.int32]
    launches: float
    input_bytes: float


def kernels_of_node(table: KernelTable, node: int) -> KernelTable:
    """Return the kernels of one operator; what they read stands for its inputs."""
    alone = table.only(np.flatnonzero(table.node == node))
    read = QUANTITIES.index("read_bytes")
    bytes_read = float(alone.per_sample[:, read].sum()), float(alone.fixed[:, read].sum())
    return replace(alone, input_bytes=bytes_read)


def _kernels(kernels: KernelGraph, row: Row) -> _RowKernels:
    view, table = DeviceView.of(row.device, row.mig), kernels.table
    features = kernel_features(
        table, row.batch, view, channels_last=row.channels_last, compiled=row.mode == "compiled"
    )
    return _RowKernels(
        features=features,
        log_roofline=np.log(roofline_ms(table, row.batch, view)).astype(np.float32),
        count=kernels.count.astype(np.float32),
        inward=kernels.inward.astype(np.int32),
        outward=kernels.outward.astype(np.int32),
        launches=kernels.launches,
        input_bytes=table.input_bytes[0] * row.batch + table.input_bytes[1],
    )


def _starts(sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
