"""One process for all GPUs of a node: `torch.nn.DataParallel`.

Each step it broadcasts the parameters from the first GPU, runs the replicas in threads that share
one interpreter, and in training reduces the gradients on the first GPU:

    T = broadcast + tensors · h + max(device, n · launches · h) [+ backward + reduce + tensors · h]

No communication is hidden. h is the host time of a launch: threads launch one at a time, and every
copied tensor is flattened and unflattened by a launch of its own. In the backward pass each GPU has
a thread that needs no interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dippm.decide.parallel.plan import Group
from dippm.decide.parallel.shards import Shard
from dippm.decide.parallel.work import HALF, OneGpuTimes
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Precision, same_arithmetic
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import QUANTITIES, KernelGraph, KernelTable
from dippm.estimate.features.kernels import sequence_of, training_step
from dippm.estimate.models.host import Host, wall_ms
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.ordered_times import OrderedTimes
from dippm.estimate.prediction import Prediction
from dippm.model.graph.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class ReplicatedState:
    """The state that every step copies to all GPUs.

    Attributes:
        size: bytes of all parameters and buffers.
        tensors: number of tensors.
    """

    size: float
    tensors: int


def forward_ms(
    group: Group, copied: ReplicatedState, device_ms: float, launches: float, launch_ms: float
) -> float:
    """Return the time of a forward pass on all GPUs, in ms.

    Args:
        group: the GPUs.
        copied: state that is copied to each of them.
        device_ms: time of the kernels on one GPU.
        launches: number of launches on one GPU.
        launch_ms: host time of a launch.
    """
    host = Host(launch_ms, 1.0)
    if group.gpus == 1:
        return wall_ms(device_ms, launches, host)
    copies = group.broadcast_ms(copied.size) + copied.tensors * launch_ms
    return copies + wall_ms(device_ms, group.gpus * launches, host)


def reduce_ms(group: Group, copied: ReplicatedState, launch_ms: float) -> float:
    """Return the time of reducing the gradients on the first GPU, in ms."""
    if group.gpus == 1:
        return 0.0
    return group.broadcast_ms(copied.size) + copied.tensors * launch_ms


def step_ms(one: Prediction, group: Group) -> float:
    """Return the time of a step of a predicted model on all GPUs, in ms.

    The launches of a training step are split between its passes in proportion to their time.
    """
    graph, c = one.source_graph, one.conditions
    alone = OneGpuTimes.of(one)
    device_ms, launches, launch_ms = alone.device_ms, float(alone.launches), alone.launch_ms
    batch = c.batch if graph.batch_is_symbolic else graph.batch
    parameters = training_step(sequence_of(graph).at_batch(batch), c.precision).parameters
    width = 2 if c.precision in HALF else 4
    copied = ReplicatedState(width * sum(parameters), len(parameters))
    other_ms = alone.rest_ms + alone.update_ms
    if c.phase != "train":
        return other_ms + forward_ms(group, copied, device_ms, launches, launch_ms)
    first_ms = sum(share.forward_ms for share in alone.shares.values())
    forward = first_ms / max(device_ms, 1e-12)
    back = wall_ms(device_ms - first_ms, (1 - forward) * launches, Host(launch_ms, 1.0))
    first = forward_ms(group, copied, first_ms, forward * launches, launch_ms)
    return other_ms + first + back + reduce_ms(group, copied, launch_ms)


# The kernels of one GPU under tensor parallelism, with the law's times for them.


_MATRIX = tuple(row.matrix for row in KERNEL_CLASSES.values())
_COLUMNS = ("flops", "write_bytes", "weight_bytes", "n")
_ROWS = ("flops", "read_bytes", "weight_bytes", "k")
_PRODUCTS = ("flops", "read_bytes", "write_bytes", "weight_bytes", "copies")
_ELEMENTS = ("flops", "read_bytes", "write_bytes", "weight_bytes", "m", "serial")


def shard_kernels(table: KernelTable, found: Sequence[Shard], ways: int) -> KernelTable:
    """Return the kernels of one GPU: shards of products and of the kernels on their results.

    A product that keeps columns still reads all rows of its input; one that keeps rows writes a
    full-size result, and the bias after the all-reduce of such results is not sharded.

    Args:
        table: the kernels of the whole model.
        found: shard of each operator.
        ways: number of GPUs.
    """
    scale = np.ones_like(table.fixed)
    for k, (node, kind) in enumerate(zip(table.node.tolist(), table.kind.tolist(), strict=True)):
        for name in _sharded_sides(found[node], _MATRIX[kind]):
            scale[k, QUANTITIES.index(name)] = 1 / ways
    return replace(
        table,
        per_sample=scale * table.per_sample,
        fixed=scale * table.fixed,
        squared=None if table.squared is None else scale * table.squared,
    )


def shard_times_ms(
    predictor: Any, graph: ModelGraph, c: Conditions, found: Sequence[Shard], ways: int
) -> dict[int, float] | None:
    """Return the time of each operator's kernels on one GPU, in ms.

    None if the predictor has no kernel law, and for a training step, which has other kernels.

    Raises:
        ConditionsError: for an engine.
    """
    if c.runtime != "pytorch":
        raise ConditionsError(
            f"products that GPUs share are not estimated for {c.runtime}",
            "Use runtime=pytorch, or another strategy: data or pipeline.",
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
            part = shard_kernels(whole, found, ways)
            tables[precision] = part, LawKernels.of(KernelGraph.of(part, ROUNDS))
        return tables[precision][1]

    bounds = predictor.monotonic_bounds
    law = OrderedTimes(predictor.law, bounds, kernels_of, c.batch, predictor.boards)
    times = law.at(c).kernel_ms
    table = tables[same_arithmetic(c.device, c.precision)[0]][0]
    sums = np.bincount(table.node, times, len(graph.nodes))
    return {node: float(sums[node]) for node in np.unique(table.node).tolist()}


def _sharded_sides(shard: Shard, matrix: bool) -> tuple[str, ...]:
    if not shard.is_split:
        return ()
    if not matrix:
        return () if shard.side == "rows" else _ELEMENTS
    return {"columns": _COLUMNS, "rows": _ROWS, "each": _PRODUCTS}[shard.side]
