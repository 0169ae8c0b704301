"""`LawKernels`: what the law needs of a model's kernels at any batch and on any device.

Message passing tells kernels apart by their surroundings. Features, rooflines and trees see each
kernel alone, so they are computed once for all kernels with the same attributes, half as many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_features import BREAKS_GRAPH
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LawKernels:
    """The kernels of a model in one format and mode.

    Attributes:
        graph: the kernels that differ, C of them.
        unique_kernels: one kernel for each class of kernels with the same attributes, U of them.
        ieee_unique_kernels: the same with IEEE products in place of TF32; None without TF32.
        inverse: position in `unique_kernels` of each kernel of `graph`, shape (C,).
        left_alone: kernels of the whole table that a compiler leaves to their library, in order.
        inward: what each kernel of `graph` reads.
        outward: what reads it.
    """

    graph: KernelGraph
    unique_kernels: KernelTable
    ieee_unique_kernels: KernelTable | None
    inverse: Integers
    left_alone: Integers
    inward: Neighbours
    outward: Neighbours

    @classmethod
    def of(cls, graph: KernelGraph) -> LawKernels:
        """Work out what depends on the graph of kernels alone."""
        table, size = graph.table, len(graph.count)
        columns = [table.kind[:, None], table.unit[:, None], table.part[:, None], table.settings]
        rows = np.concatenate([*columns, table.coefficients], axis=1)
        _, stands, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        unique_kernels = table.only(stands)
        wide = unique_kernels.unit == UNITS.index("tf32")
        plain = np.where(wide, UNITS.index("fp32"), unique_kernels.unit)
        return cls(
            graph=graph,
            unique_kernels=unique_kernels,
            ieee_unique_kernels=replace(unique_kernels, unit=plain) if wide.any() else None,
            inverse=inverse.ravel().astype(np.int64),
            left_alone=np.flatnonzero(BREAKS_GRAPH[table.kind[graph.class_of]]),
            inward=Neighbours.of(graph.inward, size),
            outward=Neighbours.of(graph.outward, size),
        )


# What each kernel hears of its neighbours: means over what it reads, and over what reads it.


Array = NDArray[np.float32]
MOST_TURNS = 16
"""Neighbours that are added one a turn, for all kernels at once; further ones are added in runs.
Few kernels have more, and a run costs about a microsecond each."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each kernel the mean over its neighbours.

    Attributes:
        turns: in turn j the neighbour j of every kernel that has more than j, each (H_j,); the
            kernels are in the order of `kernel`.
        rest: neighbours beyond the turns, grouped by kernel, shape (E,).
        first: where the group of each kernel that has such ones begins in `rest`, shape (R,).
        kernel: those that have neighbours, most neighbours first, shape (H,).
        share: 1 / neighbours of each of them, shape (H, 1).
        size: kernels in all.
    """

    turns: tuple[Integers, ...]
    rest: Integers
    first: Integers
    kernel: Integers
    share: Array
    size: int

    @classmethod
    def of(cls, flows: Integers, size: int) -> Neighbours:
        """Group data flows, shape (2, E) of (neighbour, kernel), by kernel."""
        by_kernel = np.argsort(flows[1], kind="stable")
        source = flows[0][by_kernel]
        kernel, begin, count = np.unique(flows[1][by_kernel], return_index=True, return_counts=True)
        most_first = np.argsort(-count, kind="stable")
        kernel, begin, count = kernel[most_first], begin[most_first], count[most_first]
        most = min(int(count.max(initial=0)), MOST_TURNS)
        beyond = count > MOST_TURNS
        runs = [
            source[b + MOST_TURNS : b + n]
            for b, n in zip(begin[beyond], count[beyond], strict=True)
        ]
        lengths = np.array([len(run) for run in runs], dtype=np.int64)
        return cls(
            turns=tuple(source[begin[count > j] + j] for j in range(most)),
            rest=np.concatenate([np.zeros(0, dtype=np.int64), *runs]),
            first=np.cumsum(lengths) - lengths,
            kernel=kernel,
            share=(1.0 / count[:, None]).astype(np.float32),
            size=size,
        )

    def mean(self, x: Array) -> Array:
        """Return the mean over neighbours, zero without any, shape (M, K, W) from (M, K, W)."""
        result = np.zeros_like(x)
        if not self.turns:
            return result
        sums = x.take(self.turns[0], axis=1)
        for turn in self.turns[1:]:
            sums[:, : len(turn)] += x.take(turn, axis=1)
        if len(self.first):
            sums[:, : len(self.first)] += np.add.reduceat(x.take(self.rest, axis=1), self.first, 1)
        sums *= self.share
        result[:, self.kernel] = sums
        return result
