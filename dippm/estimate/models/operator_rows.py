"""The table of a prediction: time of each operator's kernels, and the remainder of the host."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel import PARTS, UNITS
from dippm.estimate.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import SETTINGS, KernelTable
from dippm.estimate.models.targets import Bound, OperatorCost, Pass
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
PASSES: tuple[Pass, ...] = ("forward", "recompute", "backward", "optimizer")
"""Order of the rows."""
_PASS_OF = np.array([PASSES.index(part.partition("_")[0]) for part in PARTS])
_BOUNDS: tuple[Bound, ...] = get_args(Bound)
_UPDATE = PASSES.index("optimizer")


def operator_rows(
    graph: ModelGraph,
    table: KernelTable,
    batch: int,
    view: DeviceView,
    times: Floats,
    total_ms: float,
    energy: tuple[Floats, float] | None = None,
) -> tuple[OperatorCost, ...]:
    """Return a row for each operator and pass that launches kernels, in graph order.

    An optimiser's update is one row, then comes the host. A graph may have kernels and no operator
    (the model writes over its input): it has no rows.

    Args:
        graph: the model.
        table: its kernels.
        batch: batch size in samples.
        view: the device.
        times: times of the kernels in ms, shape (K,).
        total_ms: the latency, above 0; the times of the rows, if there are any, sum to it.
        energy: energies of the kernels in J, shape (K,), and of the host; None if not predicted.
    """
    if not graph.nodes:
        return ()
    quantities = table.quantities(batch)
    compute, memory = roofline_parts_ms(table, batch, view)
    kernel_j, host_j = energy or (np.zeros_like(times), 0.0)
    columns = (
        table.settings[:, SETTINGS.index("launches")],
        times,
        compute,
        memory,
        quantities[:, 0],
        quantities[:, 1:4].sum(axis=1),
        kernel_j,
    )
    passes = _PASS_OF[table.part]
    place = passes * len(graph.nodes) + np.where(passes == _UPDATE, 0, table.node)
    places, row = np.unique(place, return_inverse=True)
    sums = [np.bincount(row, column, len(places)) for column in columns]
    kernels, time_ms, compute_ms, memory_ms, flops, moved, energy_j = sums
    by_roof = np.where(compute_ms > memory_ms, _position("compute"), _position("memory"))
    # No kernel is shorter than a launch on the device.
    is_short = np.maximum(compute_ms, memory_ms) < view.launch_ms
    bound = np.where(is_short, _position("launch"), by_roof)
    by_unit = np.zeros((len(UNITS), len(places)))
    np.add.at(by_unit, (table.unit, row), quantities[:, 0])
    unit = by_unit.argmax(axis=0)
    cells = (places, kernels, flops, moved, time_ms, time_ms / total_ms, bound, energy_j, unit)
    rows = []
    for where, launched, work, bytes_, ms, share, roof, joule, carrier in zip(
        *(cell.tolist() for cell in cells), strict=True
    ):
        part, node = PASSES[where // len(graph.nodes)], where % len(graph.nodes)
        one = None if part == "optimizer" else graph.nodes[node]
        rows.append(
            OperatorCost(
                node=None if one is None else node,
                op="optimizer" if one is None else one.op,
                kernels=int(launched),
                time_ms=ms,
                share=share,
                bound=_BOUNDS[roof],
                macs=int(work / 2) if one and one.macs else 0,
                bytes_moved=int(bytes_),
                path=one.path if one else "",
                part=part,
                energy_j=None if energy is None else joule,
                flops=int(work),
                unit=UNITS[carrier] if work else "",
            )
        )
    host_ms = total_ms - float(times.sum())
    if host_ms > 1e-9 * total_ms:
        share, joule = host_ms / total_ms, None if energy is None else host_j
        host = OperatorCost(None, "host", 0, host_ms, share, "host", 0, 0, energy_j=joule)
        rows.append(replace(host, part="host"))
    return tuple(rows)


def _position(bound: Bound) -> int:
    return _BOUNDS.index(bound)
