"""The table of a prediction: what each operator's kernels take, and what is left to the host."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from dippm.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.features.kernel_table import SETTINGS, KernelTable
from dippm.graph.model_graph import ModelGraph
from dippm.models.targets import Bound, OperatorCost

Floats = NDArray[np.float64]
SHORTEST_MS = 0.002
"""Operators below this by both roofs take the time of a launch."""
_BOUNDS: tuple[Bound, ...] = get_args(Bound)


def operator_rows(
    graph: ModelGraph,
    table: KernelTable,
    batch: int,
    view: DeviceView,
    times: Floats,
    total_ms: float,
) -> tuple[OperatorCost, ...]:
    """Return a row for each operator that launches kernels, in graph order, the host last.

    Args:
        graph: the model.
        table: its kernels.
        batch: samples.
        view: the device.
        times: of the kernels in ms, shape (K,).
        total_ms: the latency, above 0; the times of the rows sum to it.
    """
    quantities = table.quantities(batch)
    compute, memory = roofline_parts_ms(quantities, table.unit, view)
    columns = (
        table.settings[:, SETTINGS.index("launches")],
        times,
        compute,
        memory,
        quantities[:, 0] / 2,
        quantities[:, 1:4].sum(axis=1),
    )
    nodes, row = np.unique(table.node, return_inverse=True)
    sums = [np.bincount(row, column, len(nodes)) for column in columns]
    kernels, time_ms, compute_ms, memory_ms, macs, moved = sums
    by_roof = np.where(compute_ms > memory_ms, _position("compute"), _position("memory"))
    is_short = np.maximum(compute_ms, memory_ms) < SHORTEST_MS
    bound = np.where(is_short, _position("launch"), by_roof)
    cells = (nodes, kernels, macs, moved, time_ms, time_ms / total_ms, bound)
    rows = []
    for node, launched, mac, bytes_, ms, share, roof in zip(
        *(cell.tolist() for cell in cells), strict=True
    ):
        one = graph.nodes[node]
        counted = int(mac) if one.macs else 0
        rows.append(
            OperatorCost(
                node=node,
                op=one.op,
                kernels=int(launched),
                time_ms=ms,
                share=share,
                bound=_BOUNDS[roof],
                macs=counted,
                bytes_moved=int(bytes_),
                path=one.path,
            )
        )
    host_ms = total_ms - float(times.sum())
    if host_ms > 1e-9 * total_ms:
        rows.append(OperatorCost(None, "host", 0, host_ms, host_ms / total_ms, "host", 0, 0))
    return tuple(rows)


def _position(bound: Bound) -> int:
    return _BOUNDS.index(bound)
