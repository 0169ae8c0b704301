"""Which kernel reads what which other kernel wrote; views between them are passed through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dippm.features.kernel import Kernel
from dippm.graph.model_graph import ModelGraph


def with_sources(graph: ModelGraph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return kernels with their `sources`.

    The kernels of one operator follow each other, except that casts of weights wait for nothing. An
    operator that launches none passes on what it reads.

    Args:
        graph: what the kernels were expanded from.
        kernels: in execution order, those of one operator next to each other.
    """
    own: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        own.setdefault(kernel.node, []).append(position)
    before: list[list[int]] = [[] for _ in graph.nodes]
    for producer, consumer in graph.edges:
        before[consumer].append(producer)
    results: list[tuple[int, ...]] = []
    wired = list(kernels)
    for node, producers in enumerate(before):
        reads = tuple(dict.fromkeys(r for p in producers for r in results[p]))
        weights: list[int] = []
        for position in own.get(node, ()):
            kernel = kernels[position]
            if _reads_weights_only(kernel):
                weights.append(position)
                continue
            wired[position] = replace(kernel, sources=(*reads, *weights))
            reads, weights = (position,), []
        results.append((*reads, *weights))
    return wired


def _reads_weights_only(kernel: Kernel) -> bool:
    return kernel.weight_bytes > 0 and kernel.read_bytes == 0


def merged_sources(
    groups: Sequence[Sequence[int]], kernels: Sequence[Kernel]
) -> list[tuple[int, ...]]:
    """Return the sources of groups of kernels, as positions of groups.

    Args:
        groups: positions in `kernels`, each in one group.
        kernels: with their `sources`.
    """
    group_of = {position: g for g, group in enumerate(groups) for position in group}
    return [
        tuple(sorted({group_of[s] for at in group for s in kernels[at].sources} - {g}))
        for g, group in enumerate(groups)
    ]
