"""The kernels of one GPU where products are shared: smaller ones, with the law's times for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dippm.decide.parallel.shards import Shard
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Precision, same_arithmetic
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_graph import KernelGraph
from dippm.estimate.features.kernel_table import QUANTITIES, KernelTable
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.ordered_times import OrderedTimes
from dippm.model.graph.model_graph import ModelGraph

_MATRIX = tuple(row.matrix for row in KERNEL_CLASSES.values())
_COLUMNS = ("flops", "write_bytes", "weight_bytes", "n")
_ROWS = ("flops", "read_bytes", "weight_bytes", "k")
_PRODUCTS = ("flops", "read_bytes", "write_bytes", "weight_bytes", "copies")
_ELEMENTS = ("flops", "read_bytes", "write_bytes", "weight_bytes", "m", "serial")


def sharded(table: KernelTable, found: Sequence[Shard], ways: int) -> KernelTable:
    """Return the kernels of one GPU: parts of products and of what works on their results.

    A product that keeps columns still reads all rows of its input; one that keeps rows writes a
    whole result, and what follows the sum of such results, a bias, is whole.

    Args:
        table: the kernels of the whole model.
        found: the shard of each operator.
        ways: GPUs.
    """
    scale = np.ones_like(table.fixed)
    for k, (node, kind) in enumerate(zip(table.node.tolist(), table.kind.tolist(), strict=True)):
        for name in _parted(found[node], _MATRIX[kind]):
            scale[k, QUANTITIES.index(name)] = 1 / ways
    return replace(table, per_sample=scale * table.per_sample, fixed=scale * table.fixed)


def shard_times_ms(
    predictor: Any, graph: ModelGraph, c: Conditions, found: Sequence[Shard], ways: int
) -> dict[int, float] | None:
    """Return the time of each operator's kernels on one GPU, in ms.

    None if the predictor has no law of kernels, or for a training step, whose kernels are others.

    Raises:
        ConditionsError: for an engine.
    """
    if c.runtime != "pytorch":
        raise ConditionsError(
            f"products that GPUs share are not estimated for {c.runtime}",
            "Ask for runtime=pytorch, or for another strategy: data or pipeline.",
        )
    if not isinstance(predictor, Hybrid) or c.phase == "train":
        return None
    tables: dict[Precision, tuple[KernelTable, LawKernels]] = {}

    def kernels_of(asked: Conditions) -> LawKernels:
        precision = same_arithmetic(asked.device, asked.precision)[0]
        if precision not in tables:
            whole = KernelTable.of(
                graph,
                precision,
                asked.mode,
                channels_last=asked.channels_last,
                attention=asked.attention,
            )
            part = sharded(whole, found, ways)
            tables[precision] = part, LawKernels.of(KernelGraph.of(part, ROUNDS))
        return tables[precision][1]

    law = OrderedTimes(predictor.law, predictor.order, kernels_of, c.batch, predictor.boards)
    times = law.at(c).kernel_ms
    table = tables[same_arithmetic(c.device, c.precision)[0]][0]
    sums = np.bincount(table.node, times, len(graph.nodes))
    return {node: float(sums[node]) for node in np.unique(table.node).tolist()}


def _parted(shard: Shard, matrix: bool) -> tuple[str, ...]:
    if not shard.is_split:
        return ()
    if not matrix:
        return () if shard.side == "rows" else _ELEMENTS
    return {"columns": _COLUMNS, "rows": _ROWS, "each": _PRODUCTS}[shard.side]
