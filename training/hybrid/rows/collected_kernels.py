"""Kernel tables of our own rows → rows of single operators amid their models.

A profiled step says how long each kernel took and, joined with the graph, which operator it belongs
to. The sum of an operator's kernels is the label of the kernels that the predictor expects of it,
and of nothing else. Operators whose kernels are short in the mean do not teach, for a profiler does
not see the whole of their time, see `collected_rows`. Rows carry the architecture of their model:
where it is held out, so are they.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import numpy as np

from dippm.measure.collected.kernels import Kernels
from dippm.measure.kernels import TracedKernel
from dippm.measure.kernels.join import join_kernels
from dippm.model.graph.model_graph import ModelGraph, OpNode
from training.hybrid.rows.collected_rows import LONG_KERNEL_MS
from training.hybrid.rows.examples import Row

AnyRow = TypeVar("AnyRow", bound=Row)
Place = Callable[[Sequence[TracedKernel], ModelGraph], Sequence[int | None]]
"""Which operator of a graph each kernel is of; None for a kernel whose operator is not certain."""
MOST_ROWS = 16_000
"""Of a set, all operators alike: a model has some 150 kernels, and tables of other people's
operators have so many rows each."""


def certain(kernels: Sequence[TracedKernel], graph: ModelGraph) -> list[int | None]:
    """Return the operator of each kernel, where its call was found in the graph.

    What is known by its module alone may be of a neighbour: neither it nor the operator that it was
    given to is a label then.
    """
    places = join_kernels(kernels, graph)
    doubtful = {place.node for place in places if place.how == "module"}
    return [
        place.node if place.how == "call" and place.node not in doubtful else None
        for place in places
    ]


def rows_of_kernels(
    rows: Iterable[AnyRow],
    tables: Kernels,
    graph: Callable[[str], ModelGraph],
    *,
    place: Place = certain,
    most: int = MOST_ROWS,
) -> list[AnyRow]:
    """Return rows of single operators, a sample with every operator equally present.

    Args:
        rows: of whole models by the wall, one for each measured point. Points of compiled models
            are passed over: their kernels are of several operators each.
        tables: of some of the points.
        graph: key → graph.
        place: joins a table with a graph.
        most: rows.
    """
    found: dict[str, list[AnyRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.graph):
        kernels = tables.get(row.point, ())
        if kernels and row.mode == "eager" and row.timer == "wall" and row.is_model:
            for op, of_node in _of_point(row, kernels, graph(row.graph), place):
                found[op].append(of_node)
    random = np.random.default_rng(0)
    shares = _shares({op: len(group) for op, group in found.items()}, most)
    return [
        group[i]
        for op, group in sorted(found.items())
        for i in sorted(random.permutation(len(group))[: shares[op]])
    ]


def _of_point(
    row: AnyRow, kernels: Sequence[TracedKernel], graph: ModelGraph, place: Place
) -> Iterator[tuple[str, AnyRow]]:
    """Yield operator and row for each operator that differs from the others of the model.

    The same operator with the same shapes runs many times in a model: its label is their median.
    """
    alike: dict[str, dict[int, float]] = defaultdict(dict)
    for node, ms in _long_times_ms(kernels, place(kernels, graph)).items():
        alike[_look(graph.nodes[node])][node] = ms
    for times in alike.values():
        node, op = min(times), graph.nodes[min(times)].op
        yield (
            op,
            replace(
                row,
                row_id=f"{row.row_id} node {node}",
                timer="kernel",
                family=f"operator {op}",
                latency_ms=median(times.values()),
                node=node,
            ),
        )


def _long_times_ms(
    kernels: Sequence[TracedKernel], nodes: Sequence[int | None]
) -> Mapping[int, float]:
    """Return the sum of the kernels of each operator, in ms, where they are long in the mean."""
    total: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for kernel, node in zip(kernels, nodes, strict=True):
        if node is not None:
            total[node] += kernel.ns
            count[node] += 1
    return {
        node: ns / 1e6 for node, ns in total.items() if ns / 1e6 >= LONG_KERNEL_MS * count[node]
    }


def _look(node: OpNode) -> str:
    return repr(
        (
            node.op,
            sorted(node.attributes.items()),
            node.in_shapes,
            node.out_shapes,
            node.in_dtypes,
            node.dtype,
            node.absorbed,
        )
    )


def _shares(sizes: Mapping[str, int], most: int) -> Mapping[str, int]:
    """Return how many of each group make `most` in all, groups as equal as they can be."""
    shares, left, groups = {}, most, len(sizes)
    for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        shares[name] = min(size, left // groups)
        left, groups = left - shares[name], groups - 1
    return shares
