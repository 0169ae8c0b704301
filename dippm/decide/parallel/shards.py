"""Tensor parallelism: the operators that are sharded over GPUs, and their communication.

Products are sharded as in Megatron-LM: one that reads a whole tensor is column-parallel and leaves
its result split; one that reads a split tensor is row-parallel, and its partial results are summed
by an all-reduce. Operators that act on each column or head by itself work on split tensors; all
others gather them first. The outputs of the model may stay split.

M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv 1909.08053, 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from dippm.model.graph.model_graph import ModelGraph, OpNode
from dippm.model.graph.operators import operator

Collective = Literal["all-reduce", "all-gather"]
Side = Literal["columns", "rows", "each"]
_COLUMNS = {"dense": "out_features", "conv1d": "out_channels", "conv2d": "out_channels",
            "conv3d": "out_channels"}  # fmt: skip
_ROWS = {"dense": "in_features", "conv1d": "in_channels", "conv2d": "in_channels",
         "conv3d": "in_channels"}  # fmt: skip
_BY_COLUMN = ("activation", "elementwise", "pool", "view")
_ARRANGED = ("copy", "concat", "resize")
"""Kernels that only move data: if all inputs are split, columns can be arranged to fit."""
_HEADS_RANK = 4


@dataclass(frozen=True, slots=True)
class ExchangedTensor:
    """A tensor that GPUs exchange.

    Attributes:
        kind: kind of collective.
        elements: number of elements of the whole tensor.
    """

    kind: Collective
    elements: int


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of an operator on one GPU.

    Attributes:
        is_split: whether the operator is sharded.
        exchanged: tensors that are exchanged before or after it.
        side: axis of a product's matrix that is sharded; "each" for columns or heads by themselves.
    """

    is_split: bool = False
    exchanged: tuple[ExchangedTensor, ...] = ()
    side: Side = "each"


def shards(graph: ModelGraph, ways: int) -> list[Shard]:
    """Return the shard of each operator, in graph order.

    Args:
        graph: graph at the batch in question.
        ways: number of GPUs that share each product; with one, nothing is sharded.
    """
    if ways == 1:
        return [Shard()] * len(graph.nodes)
    sources: list[list[int]] = [[] for _ in graph.nodes]
    for producer, consumer in graph.edges:
        sources[consumer].append(producer)
    split: list[bool] = []
    gathered: set[int] = set()
    found = []
    for node, producers in zip(graph.nodes, sources, strict=True):
        reads = [p for p in producers if split[p] and p not in gathered]
        all_split = len(reads) == len(producers) == len(node.in_shapes)
        shard, result = _shard(node, bool(reads), all_split, ways)
        if not shard.is_split and reads:
            gathered.update(reads)
            needed = (ExchangedTensor("all-gather", _elements(graph.nodes[p])) for p in reads)
            again, result = _shard(node, False, False, ways)
            shard = replace(again, exchanged=(*needed, *again.exchanged))
        split.append(result)
        found.append(shard)
    return found


def split_nodes(found: Sequence[Shard]) -> int:
    """Return the number of sharded operators."""
    return sum(shard.is_split for shard in found)


def _shard(node: OpNode, reads_split: bool, all_split: bool, ways: int) -> tuple[Shard, bool]:
    """Return the shard of an operator, and whether its result is split."""
    if node.op in _COLUMNS and node.param_bytes:
        return _product(node, reads_split, ways)
    if not reads_split:
        return Shard(), False
    if node.op in ("attention", "batch_matmul") or _works_by_column(node):
        return Shard(True), True
    if all_split and operator(node.op).kernel in _ARRANGED:
        return Shard(True), True
    return Shard(), False


def _product(node: OpNode, reads_split: bool, ways: int) -> tuple[Shard, bool]:
    groups = int(str(node.attributes.get("groups", 1)))
    if groups > 1:  # each group stays on one GPU
        fits = reads_split and groups % ways == 0
        return Shard(fits), fits
    if not reads_split:
        fits = _divides(node, _COLUMNS[node.op], ways)
        return Shard(fits, side="columns"), fits
    if not _divides(node, _ROWS[node.op], ways):
        return Shard(), False
    return Shard(True, (ExchangedTensor("all-reduce", _elements(node)),), "rows"), False


def _works_by_column(node: OpNode) -> bool:
    row = operator(node.op)
    shape = node.in_shapes[0] if node.in_shapes else ()
    if node.op in ("softmax", "log_softmax"):
        return len(shape) > 2
    if node.op == "batch_norm" or row.category in _BY_COLUMN:
        return True
    if row.category == "reduction":
        axes = node.attributes.get("axes")
        channels = 1 if len(shape) >= _HEADS_RANK else len(shape) - 1
        return (
            bool(shape)
            and isinstance(axes, tuple)
            and channels not in [a % len(shape) for a in axes]
        )
    width = node.attributes.get("normalized_size")
    return row.category == "norm" and len(shape) == _HEADS_RANK and width == shape[-1]


def _divides(node: OpNode, name: str, ways: int) -> bool:
    size = node.attributes.get(name)
    return isinstance(size, int) and size % ways == 0


def _elements(node: OpNode) -> int:
    return prod(node.out_shapes[0]) if node.out_shapes else 0
