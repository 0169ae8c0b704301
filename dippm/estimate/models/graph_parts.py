"""`GraphParts`: kernels and footprints of a phase, kept for the most recent graphs.

Grids, sweeps and searches ask about one graph under many conditions, few of which decide which
kernels run and what is in memory. None of that depends on a checkpoint, so the predictors of a
process share it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dippm.estimate.conditions import Conditions, Phase, same_arithmetic
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.memory import MemoryGpu
from dippm.estimate.models.phases import PhaseModel
from dippm.model.graph.model_graph import ModelGraph

KEPT_GRAPHS = 8
_shared: dict[Phase, GraphParts] = {}


class GraphParts:
    """Kernels and memory footprints of graphs, each made once.

    Args:
        phase: phase of the kernels and footprints.
    """

    def __init__(self, phase: PhaseModel) -> None:
        self._phase = phase
        self._kept: deque[tuple[ModelGraph, dict[Any, Any]]] = deque(maxlen=KEPT_GRAPHS)

    @classmethod
    def shared(cls, phase: PhaseModel) -> GraphParts:
        """Return those that all predictors of a phase share."""
        return _shared.setdefault(phase.name, cls(phase))

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a graph, and what the law needs of them."""
        kept = self._kept_of(graph)
        key = (same_arithmetic(c.device, c.precision)[0], *self._phase.key(c))
        if key not in kept:
            kept[key] = self._phase.kernels(graph, c)
        found: tuple[KernelTable, LawKernels] = kept[key]
        return found

    def footprint(self, graph: ModelGraph, c: Conditions) -> Any:
        """Return what tells the memory of a graph at any batch, see `PhaseModel.footprint`."""
        kept = self._kept_of(graph)
        key = ("footprint", c.precision, c.autograd, *self._phase.key(c))
        if key not in kept:
            without = self.footprint(graph, c.replace(autograd=False)) if c.autograd else None
            kept[key] = self._phase.footprint(graph, c, without)
        return kept[key]

    def usage(self, graph: ModelGraph, c: Conditions) -> Any:
        """Return the memory that a graph takes at the batch of the conditions."""
        kept = self._kept_of(graph)
        gpu = MemoryGpu(compute_capability=c.device.compute_capability)
        key = "usage", c.precision, c.autograd, *self._phase.key(c), c.batch, gpu.workspace_bytes
        if key not in kept:
            known = (self.usage(graph, c.replace(autograd=False)),) if c.autograd else ()
            kept[key] = self.footprint(graph, c).usage(c.batch, gpu, *known)
        return kept[key]

    def _kept_of(self, graph: ModelGraph) -> dict[Any, Any]:
        for known, kept in self._kept:
            if known is graph:
                return kept
        self._kept.append((graph, {}))
        return self._kept[-1][1]
