"""`LawKernels`: what the law needs of a model's kernels at any batch and on any device.

Message passing tells kernels apart by their surroundings. Features, rooflines and trees see each
kernel alone, so they are worked out once for all kernels with the same looks, a half of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_graph import KernelGraph
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.message_passing import Neighbours

Integers = NDArray[np.int64]
_BREAKS_GRAPH = np.array([row.breaks_graph for row in KERNEL_CLASSES.values()])


@dataclass(frozen=True, slots=True)
class LawKernels:
    """The kernels of a model in one format and mode.

    Attributes:
        graph: the kernels that differ, C of them.
        looks: one kernel for each class of kernels that are the same by themselves, L of them.
        ieee_looks: the same with IEEE products in place of those in TF32; None if there are none.
        look_of: position in `looks` of each kernel of `graph`, shape (C,).
        left_alone: kernels of the whole table that a compiler leaves to their library, in order.
        inward: what each kernel of `graph` reads.
        outward: what reads it.
    """

    graph: KernelGraph
    looks: KernelTable
    ieee_looks: KernelTable | None
    look_of: Integers
    left_alone: Integers
    inward: Neighbours
    outward: Neighbours

    @classmethod
    def of(cls, graph: KernelGraph) -> LawKernels:
        """Work out what depends on the graph of kernels alone."""
        table, size = graph.table, len(graph.count)
        columns = [table.kind[:, None], table.unit[:, None], table.part[:, None], table.settings]
        rows = np.concatenate([*columns, table.per_sample, table.fixed], axis=1)
        _, stands, look_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        looks = table.only(stands)
        wide = looks.unit == UNITS.index("tf32")
        plain = np.where(wide, UNITS.index("fp32"), looks.unit)
        return cls(
            graph=graph,
            looks=looks,
            ieee_looks=replace(looks, unit=plain) if wide.any() else None,
            look_of=look_of.ravel().astype(np.int64),
            left_alone=np.flatnonzero(_BREAKS_GRAPH[table.kind[graph.class_of]]),
            inward=Neighbours.of(graph.inward, size),
            outward=Neighbours.of(graph.outward, size),
        )
