"""The graph of kernels: data flow between them, and which of them are equivalent.

Kernels of repeated blocks have the same features and the same surroundings. A network of a few
message-passing rounds gives them one answer, so one of them stands for all: the merged graph is
several times smaller and its result is exactly that of the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.features.kernel_table import KernelTable

Integers = NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """The kernels of a model that differ, and the data flow around each.

    Attributes:
        table: one kernel for each class of kernels with the same attributes and surroundings,
            C of them; without `edges`.
        count: kernels in each class, shape (C,).
        inward: flows into the representative of each class, as (class read, class), shape (2, E);
            one for each flow, so that means over neighbours are those of the whole graph.
        outward: flows out of it, likewise.
        class_of: class of each kernel of the whole table, shape (K,).
        launches: number of launches of the whole table.
    """

    table: KernelTable
    count: Integers
    inward: Integers
    outward: Integers
    class_of: Integers
    launches: float

    @classmethod
    def of(cls, table: KernelTable, rounds: int) -> KernelGraph:
        """Merge the kernels that as many rounds of message passing cannot tell apart, at any batch.

        Args:
            table: kernels of a model.
            rounds: of message passing.
        """
        columns = [table.kind[:, None], table.unit[:, None], table.part[:, None], table.settings]
        attributes = np.concatenate([*columns, table.per_sample, table.fixed], axis=1)
        edges = table.edges
        colour = refined(attributes, edges, rounds)
        _, stands, count = np.unique(colour, return_index=True, return_counts=True)
        chosen = np.zeros(len(colour), dtype=bool)
        chosen[stands] = True
        return cls(
            table=table.only(stands),
            count=count.astype(np.int64),
            inward=colour[edges[:, chosen[edges[1]]]],
            outward=colour[edges[::-1][:, chosen[edges[0]]]],
            class_of=colour,
            launches=table.launches,
        )


def refined(attributes: NDArray[np.float64], edges: Integers, rounds: int) -> Integers:
    """Return a colour for each kernel: equal colours mean equal attributes and surroundings.

    Colour refinement (Weisfeiler and Leman 1968): each round adds to a kernel's colour those of
    what it reads and of what reads it, as multisets.

    Args:
        attributes: attributes of each kernel, shape (K, F).
        edges: producer and consumer of each flow, shape (2, E).
        rounds: number of rounds, the distance up to which surroundings count.

    Returns:
        0 to C - 1, shape (K,).
    """
    _, colour = np.unique(attributes, axis=0, return_inverse=True)
    colour = colour.ravel()
    for _ in range(rounds):
        hashed = _mixed(colour.astype(np.uint64) + np.uint64(1))
        inward = np.zeros(len(colour), dtype=np.uint64)
        outward = np.zeros(len(colour), dtype=np.uint64)
        np.add.at(inward, edges[1], hashed[edges[0]])
        np.add.at(outward, edges[0], hashed[edges[1]])
        rows = np.stack([colour.astype(np.uint64), inward, outward], axis=1)
        _, colour = np.unique(rows, axis=0, return_inverse=True)
        colour = colour.ravel()
    return np.asarray(colour, dtype=np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter integers over 64 bits (splitmix64), so that sums of them tell multisets apart."""
    z = values * _MIX
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
